"""The HTTP/JSON front end. server.py is its entrance, api.py the table of its routes, protocol.py HTTP itself."""
