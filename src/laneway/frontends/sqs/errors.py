"""Errors as AWS tells them: a type for the JSON form, a code for the Query form, a text; and Laneway's as those."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from laneway.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    LanewayError,
    LeaseStale,
    LimitExceeded,
    MemoryLow,
    MessageTooLarge,
    QueueFull,
    QueueNotFound,
    ReceiptInvalid,
    Refused,
    TooManyLogins,
    Unauthenticated,
    VhostNotFound,
)

_SQS = "com.amazonaws.sqs#"
_CORAL = "com.amazon.coral.service#"
_QUERY = "AWS.SimpleQueueService."


class ErrorKind(NamedTuple):
    type: str  # in the JSON form
    code: str  # in the Query form, and in the header that tells it to JSON's clients
    status: int = 400
    is_senders: bool = True


def _plain(name: str, status: int = 400) -> ErrorKind:
    return ErrorKind(_SQS + name, name, status)


def _prefixed(name: str, code: str = "", status: int = 400) -> ErrorKind:
    return ErrorKind(_SQS + name, _QUERY + (code or name), status)


#: By the names that AWS's models use.
KINDS: dict[str, ErrorKind] = {
    "BatchEntryIdsNotDistinct": _prefixed("BatchEntryIdsNotDistinct"),
    "BatchRequestTooLong": _prefixed("BatchRequestTooLong"),
    "EmptyBatchRequest": _prefixed("EmptyBatchRequest"),
    "InvalidAddress": _plain("InvalidAddress", 404),
    "InvalidAttributeName": _plain("InvalidAttributeName"),
    "InvalidAttributeValue": _plain("InvalidAttributeValue"),
    "InvalidBatchEntryId": _prefixed("InvalidBatchEntryId"),
    "InvalidMessageContents": _plain("InvalidMessageContents"),
    "InvalidSecurity": _plain("InvalidSecurity", 403),
    "MessageNotInflight": _prefixed("MessageNotInflight"),
    "OverLimit": _plain("OverLimit", 403),
    "PurgeQueueInProgress": _prefixed("PurgeQueueInProgress", status=403),
    "QueueDeletedRecently": _prefixed("QueueDeletedRecently"),
    "QueueDoesNotExist": _prefixed("QueueDoesNotExist", "NonExistentQueue"),
    "QueueNameExists": ErrorKind(_SQS + "QueueNameExists", "QueueAlreadyExists"),
    "ReceiptHandleIsInvalid": _plain("ReceiptHandleIsInvalid", 404),
    "RequestThrottled": _plain("RequestThrottled", 403),
    "ResourceNotFoundException": _plain("ResourceNotFoundException", 404),
    "TooManyEntriesInBatchRequest": _prefixed("TooManyEntriesInBatchRequest"),
    "UnsupportedOperation": _prefixed("UnsupportedOperation"),
    # Of no one service.
    "AccessDenied": ErrorKind(_CORAL + "AccessDeniedException", "AccessDenied", 403),
    "IncompleteSignature": ErrorKind(_CORAL + "IncompleteSignatureException", "IncompleteSignature"),
    "InternalFailure": ErrorKind(_CORAL + "InternalFailure", "InternalFailure", 500, False),
    "InvalidAction": ErrorKind(_CORAL + "UnknownOperationException", "InvalidAction"),
    "InvalidClientTokenId": ErrorKind(_CORAL + "UnrecognizedClientException", "InvalidClientTokenId", 403),
    "InvalidParameterValue": ErrorKind(_CORAL + "InvalidParameterValueException", "InvalidParameterValue"),
    "MissingAuthenticationToken": ErrorKind(
        _CORAL + "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403
    ),
    "MissingParameter": ErrorKind(_CORAL + "MissingRequiredParameterException", "MissingParameter"),
    "RequestExpired": ErrorKind(_CORAL + "RequestExpired", "RequestExpired"),
    "SerializationException": ErrorKind(_CORAL + "SerializationException", "MalformedInput"),
    "ServiceUnavailable": ErrorKind(_CORAL + "ServiceUnavailableException", "ServiceUnavailable", 503, False),
    "UnknownOperation": ErrorKind(_CORAL + "UnknownOperationException", "UnknownOperationException", 404),
    "SignatureDoesNotMatch": ErrorKind(_CORAL + "InvalidSignatureException", "SignatureDoesNotMatch", 403),
}


class SqsError(LanewayError):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = KINDS[kind]

    @property
    def code(self) -> str:  # type: ignore[override]
        return self.kind.code


def invalid(message: str) -> SqsError:
    return SqsError("InvalidParameterValue", message)


def value_invalid(value: object, parameter: str, reason: str) -> SqsError:
    return invalid(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")


def no_such_queue() -> SqsError:
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


#: The nearest class above an error decides. An empty text: the error's own is told.
_BY_CLASS: dict[type[LanewayError], tuple[str, str]] = {
    QueueNotFound: ("QueueDoesNotExist", "The specified queue does not exist."),
    VhostNotFound: ("QueueDoesNotExist", "The specified queue does not exist."),
    ReceiptInvalid: ("ReceiptHandleIsInvalid", "The input receipt handle is invalid."),
    LeaseStale: ("MessageNotInflight", "The specified message isn't in flight."),
    MessageTooLarge: ("InvalidParameterValue", ""),
    InvalidInput: ("InvalidParameterValue", ""),
    Unauthenticated: ("InvalidClientTokenId", ""),
    Forbidden: ("AccessDenied", ""),
    Conflict: ("UnsupportedOperation", ""),
    QueueFull: ("OverLimit", ""),
    LimitExceeded: ("OverLimit", ""),
    TooManyLogins: ("RequestThrottled", ""),
    MemoryLow: ("RequestThrottled", ""),
    Refused: ("ServiceUnavailable", ""),
}


def sqs_error(error: Exception) -> SqsError:
    """Any error as one of AWS's; what is none of the caller's business is an InternalFailure."""
    if isinstance(error, SqsError):
        return error
    if isinstance(error, LanewayError):
        for ancestor in type(error).__mro__:
            known = _BY_CLASS.get(ancestor)
            if known is not None:
                return SqsError(known[0], known[1] or error.message)
    return SqsError("InternalFailure", "The request processing has failed because of an unknown error.")


def decode_error(error: Exception) -> SqsError:
    """What msgspec found wrong with a request."""
    text = str(error)
    _, found, rest = text.partition("missing required field `")
    if found and isinstance(error, msgspec.ValidationError):
        name = rest.partition("`")[0]
        _, entry, at = text.partition("$.Entries[")
        return missing(f"Entries.{int(at.partition(']')[0]) + 1}.{name}" if entry and at[:1].isdigit() else name)
    return SqsError("SerializationException", f"The request cannot be read: {text}")
