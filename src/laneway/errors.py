"""Every error that Laneway tells a caller about, as one tree.

A front end maps this tree to its own protocol once; `code` is stable and part of the API, the sentence is
for people. `field` names the offending part of the input where there is one.

    LanewayError
    ├── InvalidInput            the request itself is wrong
    │   ├── MessageTooLarge · BatchTooLarge
    │   ├── RouteTooLong        more bindings and exchanges to look at than one message may cost
    │   └── ReceiptInvalid      not a receipt handle at all
    ├── NotFound
    │   ├── QueueNotFound · MessageNotFound · TaskNotFound · AccountNotFound
    │   ├── ExchangeNotFound · BindingNotFound · VhostNotFound
    │   ├── ProducerNotFound · CursorNotFound
    │   └── ConnectionNotFound  of a client; it may have ended
    ├── Conflict
    │   ├── QueueExists         exists with other settings
    │   ├── QueueInUse          another queue's dead letters go there, or a connection has it for itself
    │   ├── ExchangeExists      exists with other settings
    │   ├── ExchangeInUse       has bindings
    │   ├── IdempotencyConflict same key, different body
    │   ├── AccountExists
    │   ├── DocumentChanged     somebody else was first; look at it again
    │   ├── BatchFenced         the producer has committed a later batch
    │   ├── PartsMissing        a commit names parts that are not staged (any more)
    │   ├── Unroutable          messages of a batch would reach no queue, and must
    │   └── LeaseStale          the receipt handle is of an earlier delivery
    ├── Gone
    │   ├── JournalGap          history that was asked for has been dropped
    │   └── CursorLost          … and so the cursor that should have held it is of no use any more
    ├── Refused                 right request, wrong moment; try again later
    │   ├── QueueFull · DiskFull
    │   ├── LimitExceeded
    │   │   └── TooManyLogins   that failed, from one address
    │   ├── TooLargeForDisk     the disk has room, but not for so much
    │   └── Unavailable
    │       ├── MemoryLow           publishers wait until consumers have made room
    │       ├── OutOfDescriptors    the process may open no more files for the moment
    │       ├── JournalAway     the database with the journal cannot be reached for the moment
    │       ├── JournalFailed   a write or sync failed; nothing more is written until a restart
    │       ├── QueueElsewhere      in another partition than was asked, which edges look for again
    │       └── OutcomeUnknown  whoever was to do it is gone; it may be done
    ├── Unauthenticated · Forbidden
    ├── PipelineError           of a job on Spark; the server never raises one
    │   ├── PipelineUnavailable a package or Java is missing
    │   └── JobFailed           a job ended with an error
    └── StartError              the node cannot start
        └── ConfigInvalid · JournalLocked · JournalDamaged · JournalVersionUnknown
"""

from __future__ import annotations


class LanewayError(Exception):
    code = "internal_error"

    def __init__(self, message: str, *, field: str | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        """So that an error can cross to another process as it is."""
        return rebuilt, (type(self), self.__dict__)


def rebuilt(kind: type[LanewayError], said: dict[str, object]) -> LanewayError:
    error = kind.__new__(kind, said["message"])
    error.__dict__.update(said)
    return error


class InvalidInput(LanewayError):
    code = "invalid_input"


class MessageTooLarge(InvalidInput):
    code = "message_too_large"


class RouteTooLong(InvalidInput):
    code = "route_too_long"


class BatchTooLarge(InvalidInput):
    code = "batch_too_large"


class ReceiptInvalid(InvalidInput):
    code = "receipt_invalid"


class NotFound(LanewayError):
    code = "not_found"


class QueueNotFound(NotFound):
    code = "queue_not_found"


class MessageNotFound(NotFound):
    code = "message_not_found"


class TaskNotFound(NotFound):
    code = "task_not_found"


def no_task(task_id: str) -> TaskNotFound:
    """Also of a task that the caller may not know of: the answer must be the same to the letter."""
    return TaskNotFound(f"there is no task {task_id!r}", field="task_id")


class AccountNotFound(NotFound):
    code = "account_not_found"


class ExchangeNotFound(NotFound):
    code = "exchange_not_found"


class BindingNotFound(NotFound):
    code = "binding_not_found"


class CursorNotFound(NotFound):
    code = "cursor_not_found"


class VhostNotFound(NotFound):
    code = "vhost_not_found"


class ConnectionNotFound(NotFound):
    code = "connection_not_found"


class ProducerNotFound(NotFound):
    code = "producer_not_found"


class Conflict(LanewayError):
    code = "conflict"


class QueueExists(Conflict):
    code = "queue_exists"


class QueueInUse(Conflict):
    code = "queue_in_use"


class ExchangeExists(Conflict):
    code = "exchange_exists"


class ExchangeInUse(Conflict):
    code = "exchange_in_use"


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class AccountExists(Conflict):
    code = "account_exists"


class DocumentChanged(Conflict):
    """What a change of documents rests on is no longer as it was."""

    code = "document_changed"


class BatchFenced(Conflict):
    code = "batch_fenced"


class PartsMissing(Conflict):
    code = "parts_missing"


class Unroutable(Conflict):
    """Messages that would reach no queue, and must."""

    code = "unroutable"


class LeaseStale(Conflict):
    code = "lease_stale"


class Gone(LanewayError):
    code = "gone"


class JournalGap(Gone):
    code = "history_gone"


class CursorLost(Gone):
    code = "cursor_lost"


class Refused(LanewayError):
    code = "refused"


class QueueFull(Refused):
    code = "queue_full"


class LimitExceeded(Refused):
    code = "limit_exceeded"


class TooManyLogins(LimitExceeded):
    """… that failed, from one address."""

    code = "too_many_logins"


class DiskFull(Refused):
    code = "disk_full"


class TooLargeForDisk(Refused):
    """The disk has room for messages, but not for so many bytes of them."""

    code = "too_large_for_disk"


class Unavailable(Refused):
    code = "unavailable"


class MemoryLow(Unavailable):
    code = "memory_low"


class OutOfDescriptors(Unavailable):
    code = "out_of_descriptors"


class JournalAway(Unavailable):
    code = "journal_away"


class JournalFailed(Unavailable):
    code = "journal_failed"


class QueueElsewhere(Unavailable):
    code = "queue_elsewhere"


class OutcomeUnknown(Unavailable):
    code = "outcome_unknown"


class Unauthenticated(LanewayError):
    code = "unauthenticated"


class Forbidden(LanewayError):
    code = "forbidden"


class PipelineError(LanewayError):
    code = "pipeline_error"


class PipelineUnavailable(PipelineError):
    code = "pipeline_unavailable"


class JobFailed(PipelineError):
    code = "job_failed"


class StartError(LanewayError):
    code = "start_error"


class ConfigInvalid(StartError):
    code = "config_invalid"


class JournalLocked(StartError):
    code = "journal_locked"


class JournalDamaged(StartError):
    code = "journal_damaged"


class JournalVersionUnknown(StartError):
    code = "journal_version_unknown"
