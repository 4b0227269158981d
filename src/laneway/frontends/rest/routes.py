"""The table of routes of queues, messages and accounts: what each endpoint is called, takes and answers."""

from __future__ import annotations

from laneway.frontends.rest import answers as a
from laneway.frontends.rest import wire as w
from laneway.frontends.rest.accounts import Accounts
from laneway.frontends.rest.admin import Administration
from laneway.frontends.rest.dequeuing import Dequeuing
from laneway.frontends.rest.hot import HotPaths
from laneway.frontends.rest.publishing import PublishBody, PublishOptions
from laneway.frontends.rest.routing import Each, Route


def message_routes(hot: HotPaths, dequeuing: Dequeuing) -> list[Route]:
    return [*_publishing(hot), *_dequeuing(dequeuing), *_settling(hot), *_settling_many(hot)]


def queue_routes(admin: Administration) -> list[Route]:
    return [*_queues(admin), *_contents(admin), *_dead_letters(admin), *_tasks(admin)]


def account_routes(accounts: Accounts) -> list[Route]:
    return [*_accounts(accounts), *_keys(accounts)]


def _publishing(hot: HotPaths) -> list[Route]:
    return [
        Route(
            method="POST",
            pattern="{Q}/messages",
            name="publish",
            summary="Publish one message, or a list of them",
            fast=hot.publish,
            request=PublishBody,
            takes_bytes=True,
            options=PublishOptions,
            answers={201: a.PublishAnswer | list[a.PublishAnswer], 207: Each((a.PublishAnswer, a.ErrorAnswer))},
            refusals=(404, 409, 413, 429, 507),
        ),
    ]


def _dequeuing(dequeuing: Dequeuing) -> list[Route]:
    return [
        Route(
            method="POST",
            pattern="{Q}/dequeue",
            name="dequeue",
            summary="Lease messages, highest priority first; wait for the first one if asked to",
            fast=dequeuing.dequeue,
            request=w.DequeueRequest,
            body_optional=True,
            answers={200: a.DequeueAnswer},
            refusals=(404,),
        ),
    ]


def _settling(hot: HotPaths) -> list[Route]:
    return [
        Route(
            method="DELETE",
            pattern="{Q}/messages/{message_id}",
            name="ack",
            summary="Acknowledge a leased message: it is done, and gone",
            fast=hot.ack,
            request=w.AckRequest,
            body_optional=True,
            options=w.AckOptions,
            answers={204: None},
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            pattern="{Q}/messages/{message_id}/nack",
            name="nack",
            summary="Give a leased message back: now, after a delay, or with a growing back-off",
            fast=hot.nack,
            request=w.NackRequest,
            answers={200: a.NackAnswer},
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            pattern="{Q}/messages/{message_id}/reject",
            name="reject",
            summary="Make a leased message a dead letter at once",
            fast=hot.reject,
            request=w.RejectRequest,
            answers={204: None},
            refusals=(404, 409),
        ),
        Route(
            method="PATCH",
            pattern="{Q}/messages/{message_id}/visibility",
            name="change_visibility",
            summary="Let a lease end so many seconds from now; 0 gives the message back",
            fast=hot.change_visibility,
            request=w.VisibilityRequest,
            answers={200: a.VisibilityAnswer},
            refusals=(404, 409),
        ),
    ]


def _settling_many(hot: HotPaths) -> list[Route]:
    return [
        *(
            Route(
                method="POST",
                pattern=f"{{Q}}/{path}",
                short=True,
                name=f"{path}_batch",
                summary=f"The batch form of {path}: one result for each entry, in order",
                fast=handler,
                request=list[request],  # type: ignore[valid-type]
                answers={200: list[a.SettledAnswer], 207: Each((a.SettledAnswer, a.ErrorAnswer))},
                refusals=(404,),
            )
            for path, handler, request in (
                ("ack", hot.ack_many, w.AckRequest),
                ("nack", hot.nack_many, w.NackRequest),
                ("reject", hot.reject_many, w.RejectRequest),
                ("visibility", hot.change_visibility_many, w.VisibilityRequest),
            )
        ),
    ]


def _queues(admin: Administration) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="{QS}",
            name="list_queues",
            summary="The queues of a virtual host, in the order of their names",
            slow=admin.list_queues,
            options=w.ListOptions,
            answers={200: a.QueuesAnswer},
        ),
        Route(
            method="PUT",
            pattern="{Q}",
            short=True,
            name="put_queue",
            summary="Create a queue, or replace the settings of the one there is",
            slow=admin.put_queue,
            request=w.PutQueueRequest,
            body_optional=True,
            answers={200: a.QueueAnswer, 201: a.QueueAnswer},
            refusals=(404, 409, 429, 507),
        ),
        Route(
            method="GET",
            pattern="{Q}",
            short=True,
            name="get_queue",
            summary="A queue's settings",
            slow=admin.get_queue,
            answers={200: a.QueueAnswer},
            refusals=(404,),
        ),
        Route(
            method="PATCH",
            pattern="{Q}",
            name="change_queue",
            summary="Change the given settings of a queue",
            slow=admin.change_queue,
            request=w.QueueSettingsRequest,
            body_optional=True,
            answers={200: a.QueueAnswer},
            refusals=(404, 409, 507),
        ),
        Route(
            method="DELETE",
            pattern="{Q}",
            short=True,
            name="delete_queue",
            summary="Delete a queue with all it holds",
            slow=admin.delete_queue,
            options=w.DeleteOptions,
            answers={204: None},
            refusals=(404, 409),
        ),
    ]


def _contents(admin: Administration) -> list[Route]:
    return [
        Route(
            method="POST",
            pattern="{Q}/purge",
            name="purge",
            summary="Delete every message that waits; leased and dead ones stay",
            slow=admin.purge_queue,
            answers={200: a.PurgeAnswer},
            refusals=(404,),
        ),
        Route(
            method="GET",
            pattern="{Q}/stats",
            name="stats",
            summary="Counts, ages and rates of a queue",
            slow=admin.stats,
            answers={200: a.StatsAnswer},
            refusals=(404,),
        ),
        Route(
            method="GET",
            pattern="{Q}/messages",
            name="peek",
            summary="Look at messages without leasing them",
            slow=admin.peek,
            options=w.PeekOptions,
            answers={200: a.PeekAnswer},
            refusals=(404,),
        ),
    ]


def _dead_letters(admin: Administration) -> list[Route]:
    return [
        Route(
            method="POST",
            pattern="{Q}/redrive",
            name="redrive",
            summary="Begin to move dead letters back to where they came from, or to a target",
            slow=admin.start_redrive,
            request=w.RedriveBody,
            body_optional=True,
            answers={202: a.TaskAnswer},
            refusals=(404, 429, 507),
        ),
        Route(
            method="POST",
            pattern="{Q}/reprocess",
            short=True,
            name="reprocess",
            summary="The same as redrive: dead letters back to where they came from",
            slow=admin.start_redrive,
            request=w.RedriveBody,
            body_optional=True,
            answers={202: a.TaskAnswer},
            refusals=(404, 429, 507),
        ),
        Route(
            method="GET",
            pattern="{Q}/redrive",
            name="list_redrives",
            summary="The redrives of a queue, newest first",
            slow=admin.list_redrives,
            answers={200: a.TasksAnswer},
            refusals=(404,),
        ),
        Route(
            method="POST",
            pattern="{Q}/dead-letters/delete",
            name="delete_dead_letters",
            summary='Delete dead letters; all of them only with "all": true',
            slow=admin.delete_dead_letters,
            request=w.DeleteDeadLettersBody,
            answers={200: a.DeletedAnswer},
            refusals=(404,),
        ),
    ]


def _tasks(admin: Administration) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="/tasks/{task_id}",
            name="get_task",
            summary="How far a task has come",
            slow=admin.get_task,
            answers={200: a.TaskAnswer},
            refusals=(404,),
        ),
        Route(
            method="POST",
            pattern="/tasks/{task_id}/cancel",
            name="cancel_task",
            summary="Stop a task; what it has done stays done",
            slow=admin.cancel_task,
            answers={200: a.TaskAnswer},
            refusals=(404,),
        ),
    ]


def _accounts(accounts: Accounts) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="/whoami",
            name="whoami",
            summary="The account this request acts as",
            slow=accounts.whoami,
            answers={200: a.AccountAnswer},
        ),
        Route(
            method="GET",
            pattern="/accounts",
            name="list_accounts",
            summary="All accounts",
            slow=accounts.list_accounts,
            answers={200: a.AccountsAnswer},
        ),
        Route(
            method="PUT",
            pattern="/accounts/{name}",
            name="put_account",
            summary="Create an account or change it; what is left out stays as it is",
            slow=accounts.put_account,
            request=w.AccountRequest,
            body_optional=True,
            answers={200: a.AccountAnswer, 201: a.AccountAnswer},
            refusals=(409, 429, 507),
        ),
        Route(
            method="GET",
            pattern="/accounts/{name}",
            name="get_account",
            summary="One account",
            slow=accounts.get_account,
            answers={200: a.AccountAnswer},
            refusals=(404,),
        ),
        Route(
            method="DELETE",
            pattern="/accounts/{name}",
            name="delete_account",
            summary="Delete an account with its keys",
            slow=accounts.delete_account,
            answers={204: None},
            refusals=(404, 409),
        ),
    ]


def _keys(accounts: Accounts) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="/accounts/{name}/keys",
            name="list_keys",
            summary="The API keys of an account, without the keys themselves",
            slow=accounts.list_keys,
            answers={200: a.KeysAnswer},
            refusals=(404,),
        ),
        Route(
            method="POST",
            pattern="/accounts/{name}/keys",
            name="create_key",
            summary="A new API key, shown this once",
            slow=accounts.create_key,
            request=w.KeyRequest,
            body_optional=True,
            answers={201: a.NewKeyAnswer},
            refusals=(404, 429, 507),
        ),
        Route(
            method="DELETE",
            pattern="/accounts/{name}/keys/{key_id}",
            name="delete_key",
            summary="Delete an API key: it is refused from then on",
            slow=accounts.delete_key,
            answers={204: None},
            refusals=(404, 409),
        ),
    ]
