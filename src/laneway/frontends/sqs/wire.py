"""Requests and results of every action, with AWS's names: the JSON form is these structs as they stand, the Query form
is made from them (query.py)."""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, kw_only=True, gc=False):
    """Unknown members are passed over, as AWS does."""


class Result(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What is empty is left out, as AWS does: clients ask whether "Failed" is in an answer."""


class MessageAttributeValue(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    DataType: str = ""
    StringValue: str | None = None
    BinaryValue: bytes | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[bytes] | None = None


AttributeValues = dict[str, MessageAttributeValue]


# --- queues


class QueueRequest(Request, kw_only=True):
    QueueUrl: str


class CreateQueue(Request, kw_only=True):
    QueueName: str
    Attributes: dict[str, str] = {}
    tags: dict[str, str] = {}


class QueueUrlResult(Result, kw_only=True):
    QueueUrl: str


class GetQueueUrl(Request, kw_only=True):
    QueueName: str
    QueueOwnerAWSAccountId: str | None = None


class ListQueues(Request, kw_only=True):
    QueueNamePrefix: str = ""
    NextToken: str | None = None
    MaxResults: int | None = None


class ListQueuesResult(Result, kw_only=True):
    QueueUrls: list[str] = []
    NextToken: str | None = None


class GetQueueAttributes(QueueRequest, kw_only=True):
    AttributeNames: list[str] = []


class AttributesResult(Result, kw_only=True):
    Attributes: dict[str, str] = {}


class SetQueueAttributes(QueueRequest, kw_only=True):
    Attributes: dict[str, str]


class ListDeadLetterSourceQueues(QueueRequest, kw_only=True):
    NextToken: str | None = None
    MaxResults: int | None = None


class ListDeadLetterSourceQueuesResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    queueUrls: list[str]
    NextToken: str | None = None


class TagQueue(QueueRequest, kw_only=True):
    Tags: dict[str, str]


class UntagQueue(QueueRequest, kw_only=True):
    TagKeys: list[str]


class TagsResult(Result, kw_only=True):
    Tags: dict[str, str] = {}


class AddPermission(QueueRequest, kw_only=True):
    Label: str
    AWSAccountIds: list[str]
    Actions: list[str]


class RemovePermission(QueueRequest, kw_only=True):
    Label: str


# --- messages


class MessageEntry(Request, kw_only=True):
    """What SendMessage and an entry of its batch have in common."""

    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: AttributeValues | None = None
    MessageSystemAttributes: AttributeValues | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessage(MessageEntry, kw_only=True):
    QueueUrl: str


class SendMessageResult(Result, kw_only=True):
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    MessageId: str
    SequenceNumber: str | None = None


class SendMessageBatchEntry(MessageEntry, kw_only=True):
    Id: str


class SendMessageBatch(QueueRequest, kw_only=True):
    Entries: list[SendMessageBatchEntry]


class SendMessageBatchResultEntry(SendMessageResult, kw_only=True):
    Id: str


class BatchResultErrorEntry(msgspec.Struct, kw_only=True):
    Id: str
    SenderFault: bool
    Code: str
    Message: str


class SendMessageBatchResult(Result, kw_only=True):
    Successful: list[SendMessageBatchResultEntry] = []
    Failed: list[BatchResultErrorEntry] = []


class PlainSentEntry(msgspec.Struct, gc=False):
    """Hot: of a message with nothing but a body, made without naming its members."""

    Id: str
    MD5OfMessageBody: str
    MessageId: str


class PlainSentResult(msgspec.Struct, gc=False):
    Successful: list[PlainSentEntry]


class ReceiveMessage(QueueRequest, kw_only=True):
    AttributeNames: list[str] = []
    MessageSystemAttributeNames: list[str] = []
    MessageAttributeNames: list[str] = []
    MaxNumberOfMessages: int | None = None
    VisibilityTimeout: int | None = None
    WaitTimeSeconds: int | None = None
    ReceiveRequestAttemptId: str | None = None


class Message(Result, kw_only=True):
    MessageId: str
    ReceiptHandle: str
    MD5OfBody: str
    Body: str
    Attributes: dict[str, str] = {}
    MD5OfMessageAttributes: str | None = None
    MessageAttributes: AttributeValues = {}


class ReceiveMessageResult(Result, kw_only=True):
    Messages: list[Message] = []


class PlainMessage(msgspec.Struct, gc=False):
    """Hot: a message of which nothing but the body is wanted, made without naming its members."""

    MessageId: str
    ReceiptHandle: str
    MD5OfBody: str
    Body: str


class PlainReceiveResult(msgspec.Struct, gc=False):
    Messages: list[PlainMessage]


class DeleteMessage(QueueRequest, kw_only=True):
    ReceiptHandle: str


class HandleEntry(Request, kw_only=True):
    Id: str
    ReceiptHandle: str


class DeleteMessageBatch(QueueRequest, kw_only=True):
    Entries: list[HandleEntry]


class ChangeMessageVisibility(QueueRequest, kw_only=True):
    ReceiptHandle: str
    VisibilityTimeout: int


class ChangeEntry(HandleEntry, kw_only=True):
    VisibilityTimeout: int | None = None


class ChangeMessageVisibilityBatch(QueueRequest, kw_only=True):
    Entries: list[ChangeEntry]


class IdEntry(msgspec.Struct, kw_only=True):
    Id: str


class DeleteMessageBatchResult(Result, kw_only=True):
    Successful: list[IdEntry] = []
    Failed: list[BatchResultErrorEntry] = []


class ChangeMessageVisibilityBatchResult(Result, kw_only=True):
    Successful: list[IdEntry] = []
    Failed: list[BatchResultErrorEntry] = []


# --- message move tasks


class StartMessageMoveTask(Request, kw_only=True):
    SourceArn: str
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None


class TaskHandleResult(Result, kw_only=True):
    TaskHandle: str


class CancelMessageMoveTask(Request, kw_only=True):
    TaskHandle: str


class CancelMessageMoveTaskResult(msgspec.Struct, kw_only=True):
    ApproximateNumberOfMessagesMoved: int


class ListMessageMoveTasks(Request, kw_only=True):
    SourceArn: str
    MaxResults: int | None = None


class MoveTask(Result, kw_only=True):
    TaskHandle: str | None = None  # of a running one, which can be cancelled
    Status: str
    SourceArn: str
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None
    ApproximateNumberOfMessagesMoved: int
    ApproximateNumberOfMessagesToMove: int | None = None
    FailureReason: str | None = None
    StartedTimestamp: int


class ListMessageMoveTasksResult(Result, kw_only=True):
    Results: list[MoveTask] = []
