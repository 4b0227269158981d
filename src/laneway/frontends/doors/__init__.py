"""What all front ends have at their doors: sockets that listen, and TLS. Knows no protocol behind it."""
