// What a client of AWS's SDK for JavaScript does: test_javascript.py runs this, and looks at what it prints.
//
//     node javascript_scenarios.cjs URL KEY SECRET     {name of a scenario: null, or how it failed}
"use strict";

const assert = require("node:assert/strict");
const {
  SQSClient,
  CreateQueueCommand,
  GetQueueUrlCommand,
  GetQueueAttributesCommand,
  ListQueuesCommand,
  SendMessageCommand,
  SendMessageBatchCommand,
  ReceiveMessageCommand,
  DeleteMessageCommand,
  DeleteMessageBatchCommand,
  ChangeMessageVisibilityCommand,
  PurgeQueueCommand,
  DeleteQueueCommand,
  TagQueueCommand,
  ListQueueTagsCommand,
  StartMessageMoveTaskCommand,
  ListMessageMoveTasksCommand,
  QueueDoesNotExist,
  ReceiptHandleIsInvalid,
  PurgeQueueInProgress,
  QueueDeletedRecently,
  EmptyBatchRequest,
} = require("@aws-sdk/client-sqs");

async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it was not refused");
}

async function create(sqs, QueueName, Attributes = {}) {
  return (await sqs.send(new CreateQueueCommand({ QueueName, Attributes }))).QueueUrl;
}

const scenarios = {
  async messages_with_attributes(sqs, name) {
    const QueueUrl = await create(sqs, name, { VisibilityTimeout: "60" });
    const MessageAttributes = {
      text: { DataType: "String", StringValue: "wörd <&>" },
      number: { DataType: "Number", StringValue: "42" },
      bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
    };
    // The SDK checks the MD5s of bodies itself.
    const sent = await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "hällo 😀", MessageAttributes }));
    const { Messages } = await sqs.send(
      new ReceiveMessageCommand({ QueueUrl, MessageSystemAttributeNames: ["All"], MessageAttributeNames: ["All"] })
    );
    assert.equal(Messages[0].Body, "hällo 😀");
    assert.equal(Messages[0].MessageId, sent.MessageId);
    assert.equal(Messages[0].MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
    assert.equal(Messages[0].MessageAttributes.text.StringValue, "wörd <&>");
    assert.deepEqual([...Messages[0].MessageAttributes.bytes.BinaryValue], [0, 255]);
    assert.equal(Messages[0].Attributes.ApproximateReceiveCount, "1");
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: Messages[0].ReceiptHandle }));
    assert.equal((await sqs.send(new ReceiveMessageCommand({ QueueUrl }))).Messages, undefined);
  },

  async batches(sqs, name) {
    const QueueUrl = await create(sqs, name);
    const Entries = [...Array(10).keys()].map((n) => ({ Id: `e${n}`, MessageBody: `m${n}` }));
    const sent = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
    assert.deepEqual(sent.Successful.map((one) => one.Id), Entries.map((one) => one.Id));
    const { Messages } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10 }));
    assert.deepEqual(Messages.map((one) => one.Body), Entries.map((one) => one.MessageBody));
    const handles = Messages.map((one, n) => ({ Id: `${n}`, ReceiptHandle: one.ReceiptHandle }));
    handles[9].ReceiptHandle = "x";
    const deleted = await sqs.send(new DeleteMessageBatchCommand({ QueueUrl, Entries: handles }));
    assert.equal(deleted.Successful.length, 9);
    assert.equal(deleted.Failed[0].Code, "ReceiptHandleIsInvalid");
  },

  async a_long_poll_gets_what_comes(sqs, name) {
    const QueueUrl = await create(sqs, name);
    const waiting = sqs.send(new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds: 20 }));
    await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "x" }));
    assert.equal((await waiting).Messages[0].Body, "x");
  },

  async fifo_queues(sqs, name) {
    const QueueUrl = await create(sqs, `${name}.fifo`, { FifoQueue: "true", ContentBasedDeduplication: "true" });
    for (const [MessageGroupId, MessageBody] of ["aA", "bB", "aC", "aC"]) {
      await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody, MessageGroupId }));
    }
    const { Messages } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10 }));
    assert.deepEqual(Messages.map((one) => one.Body), ["A", "C", "B"]);
    const ReceiptHandle = Messages[0].ReceiptHandle;
    await sqs.send(new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 }));
    const again = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10 }));
    assert.deepEqual(again.Messages.map((one) => one.Body), ["A"]);
  },

  async errors_are_of_their_classes(sqs, name) {
    const missing = await refusal(sqs.send(new GetQueueUrlCommand({ QueueName: name })));
    assert.ok(missing instanceof QueueDoesNotExist);
    assert.equal(missing.message, "The specified queue does not exist.");
    assert.equal(missing.$metadata.httpStatusCode, 400);
    const QueueUrl = await create(sqs, name);
    const handle = await refusal(sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: "x" })));
    assert.ok(handle instanceof ReceiptHandleIsInvalid);
    const batch = await refusal(sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries: [] })));
    assert.ok(batch instanceof EmptyBatchRequest);
    await sqs.send(new PurgeQueueCommand({ QueueUrl }));
    const purged = await refusal(sqs.send(new PurgeQueueCommand({ QueueUrl })));
    assert.ok(purged instanceof PurgeQueueInProgress);
    await sqs.send(new DeleteQueueCommand({ QueueUrl }));
    assert.ok((await refusal(create(sqs, name))) instanceof QueueDeletedRecently);
    const empty = await refusal(sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "" })));
    assert.equal(empty.name, "QueueDoesNotExist");
  },

  async queues_are_listed_tagged_and_described(sqs, name) {
    const QueueUrl = await create(sqs, name);
    assert.deepEqual((await sqs.send(new ListQueuesCommand({ QueueNamePrefix: name }))).QueueUrls, [QueueUrl]);
    await sqs.send(new TagQueueCommand({ QueueUrl, Tags: { team: "a" } }));
    assert.deepEqual((await sqs.send(new ListQueueTagsCommand({ QueueUrl }))).Tags, { team: "a" });
    const told = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }));
    assert.equal(told.Attributes.SqsManagedSseEnabled, "true");
  },

  async dead_letters_are_moved_back(sqs, name) {
    const dead = await create(sqs, `${name}-dead`);
    const told = await sqs.send(new GetQueueAttributesCommand({ QueueUrl: dead, AttributeNames: ["QueueArn"] }));
    const SourceArn = told.Attributes.QueueArn;
    const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: SourceArn, maxReceiveCount: 1 });
    const QueueUrl = await create(sqs, name, { RedrivePolicy });
    await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "x" }));
    await sqs.send(new ReceiveMessageCommand({ QueueUrl, VisibilityTimeout: 0 }));
    const there = { QueueUrl: dead, WaitTimeSeconds: 5, VisibilityTimeout: 0 };
    assert.equal((await sqs.send(new ReceiveMessageCommand(there))).Messages[0].Body, "x");
    const { TaskHandle } = await sqs.send(new StartMessageMoveTaskCommand({ SourceArn }));
    assert.equal(JSON.parse(Buffer.from(TaskHandle, "base64")).sourceArn, SourceArn);
    const back = await sqs.send(new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds: 10 }));
    assert.equal(back.Messages[0].Body, "x");
    const { Results } = await sqs.send(new ListMessageMoveTasksCommand({ SourceArn }));
    assert.equal(Results.length, 1);
  },
};

async function main(endpoint, accessKeyId, secretAccessKey) {
  const credentials = { accessKeyId, secretAccessKey };
  const sqs = new SQSClient({ endpoint, region: "us-east-1", credentials, maxAttempts: 1 });
  const found = {};
  for (const [number, [what, run]] of Object.entries(scenarios).entries()) {
    try {
      await run(sqs, `javascript-${number}`);
      found[what] = null;
    } catch (error) {
      found[what] = error.stack;
    }
  }
  sqs.destroy();
  console.log(JSON.stringify(found));
}

main(...process.argv.slice(2));
