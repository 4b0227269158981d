"""Requests and results of every action, with AWS's names: the JSON form is these structs as they stand, the Query form
is made from them (query_form.py)."""

from __future__ import annotations

import msgspec


class SqsRequest(msgspec.Struct, kw_only=True, gc=False):
    """The decoder passes over unknown members, as AWS does."""


class SqsResult(msgspec.Struct, omit_defaults=True, gc=False):
    """The encoder leaves out what is empty, as AWS does: clients ask whether "Failed" is in an answer. The frequent
    results are made without naming their members, which is faster."""


class MessageAttributeValue(msgspec.Struct, omit_defaults=True, gc=False):
    DataType: str = ""
    StringValue: str | None = None
    BinaryValue: bytes | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[bytes] | None = None


AttributeValues = dict[str, MessageAttributeValue]


# --- queues


class QueueRequest(SqsRequest, kw_only=True):
    QueueUrl: str


class CreateQueue(SqsRequest, kw_only=True):
    QueueName: str
    Attributes: dict[str, str] = {}
    tags: dict[str, str] = {}


class QueueUrlResult(SqsResult, kw_only=True):
    QueueUrl: str


class GetQueueUrl(SqsRequest, kw_only=True):
    QueueName: str
    QueueOwnerAWSAccountId: str | None = None


class ListQueues(SqsRequest, kw_only=True):
    QueueNamePrefix: str = ""
    NextToken: str | None = None
    MaxResults: int | None = None


class ListQueuesResult(SqsResult, kw_only=True):
    QueueUrls: list[str] = []
    NextToken: str | None = None


class GetQueueAttributes(QueueRequest, kw_only=True):
    AttributeNames: list[str] = []


class AttributesResult(SqsResult, kw_only=True):
    Attributes: dict[str, str] = {}


class SetQueueAttributes(QueueRequest, kw_only=True):
    Attributes: dict[str, str] = {}


class ListDeadLetterSourceQueues(QueueRequest, kw_only=True):
    NextToken: str | None = None
    MaxResults: int | None = None


class ListDeadLetterSourceQueuesResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    queueUrls: list[str]
    NextToken: str | None = None


class TagQueue(QueueRequest, kw_only=True):
    Tags: dict[str, str] = {}


class UntagQueue(QueueRequest, kw_only=True):
    TagKeys: list[str] = []


class TagsResult(SqsResult, kw_only=True):
    Tags: dict[str, str] = {}


class AddPermission(QueueRequest, kw_only=True):
    Label: str
    AWSAccountIds: list[str] = []
    Actions: list[str] = []


class RemovePermission(QueueRequest, kw_only=True):
    Label: str


# --- messages


class MessageEntry(SqsRequest, kw_only=True):
    """What SendMessage and an entry of its batch have in common."""

    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: AttributeValues | None = None
    MessageSystemAttributes: AttributeValues | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessage(MessageEntry, kw_only=True):
    QueueUrl: str


class SendMessageResult(SqsResult):
    MD5OfMessageBody: str
    MessageId: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None
    Id: str | None = None  # of an entry of a batch


class SendMessageBatchEntry(MessageEntry, kw_only=True):
    Id: str


class SendMessageBatch(QueueRequest, kw_only=True):
    Entries: list[SendMessageBatchEntry] = []


class BatchResultErrorEntry(msgspec.Struct, kw_only=True):
    Id: str
    SenderFault: bool
    Code: str
    Message: str


class SendMessageBatchResult(SqsResult):
    Successful: list[SendMessageResult] = []
    Failed: list[BatchResultErrorEntry] = []


class ReceiveMessage(QueueRequest, kw_only=True):
    AttributeNames: list[str] = []
    MessageSystemAttributeNames: list[str] = []
    MessageAttributeNames: list[str] = []
    MaxNumberOfMessages: int | None = None
    VisibilityTimeout: int | None = None
    WaitTimeSeconds: int | None = None
    ReceiveRequestAttemptId: str | None = None


class ReceivedMessage(SqsResult):
    MessageId: str
    ReceiptHandle: str
    MD5OfBody: str
    Body: str
    Attributes: dict[str, str] = {}
    MD5OfMessageAttributes: str | None = None
    MessageAttributes: AttributeValues = {}


class ReceiveMessageResult(SqsResult):
    Messages: list[ReceivedMessage] = []


class DeleteMessage(QueueRequest, kw_only=True):
    ReceiptHandle: str


class HandleEntry(SqsRequest, kw_only=True):
    Id: str
    ReceiptHandle: str


class DeleteMessageBatch(QueueRequest, kw_only=True):
    Entries: list[HandleEntry] = []


class ChangeMessageVisibility(QueueRequest, kw_only=True):
    ReceiptHandle: str
    VisibilityTimeout: int


class ChangeEntry(HandleEntry, kw_only=True):
    VisibilityTimeout: int | None = None


class ChangeMessageVisibilityBatch(QueueRequest, kw_only=True):
    Entries: list[ChangeEntry] = []


class IdEntry(msgspec.Struct, gc=False):
    Id: str


class SettledBatchResult(SqsResult):
    """Of DeleteMessageBatch and ChangeMessageVisibilityBatch."""

    Successful: list[IdEntry] = []
    Failed: list[BatchResultErrorEntry] = []


# --- message move tasks


class StartMessageMoveTask(SqsRequest, kw_only=True):
    SourceArn: str
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None


class TaskHandleResult(SqsResult, kw_only=True):
    TaskHandle: str


class CancelMessageMoveTask(SqsRequest, kw_only=True):
    TaskHandle: str


class CancelMessageMoveTaskResult(msgspec.Struct, kw_only=True):
    ApproximateNumberOfMessagesMoved: int


class ListMessageMoveTasks(SqsRequest, kw_only=True):
    SourceArn: str
    MaxResults: int | None = None


class MoveTask(SqsResult, kw_only=True):
    TaskHandle: str | None = None  # of a running one, which can be cancelled
    Status: str
    SourceArn: str
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None
    ApproximateNumberOfMessagesMoved: int
    ApproximateNumberOfMessagesToMove: int | None = None
    FailureReason: str | None = None
    StartedTimestamp: int


class ListMessageMoveTasksResult(msgspec.Struct, kw_only=True):
    Results: list[MoveTask]
