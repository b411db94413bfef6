"""A fake of Dataflow's REST API (v1b3): jobs are checked, kept, and live through states.

What comes in is parsed by Google's own protobuf, so a field that the service does not know is an
answer 400. A test sets what the service is to say: the states that a job shows, one for each time
it is asked for, or `worker`, which does the job's work; its messages; a refusal. Clients find
`credentials` that need no server; nothing leaves this machine.
"""

import datetime
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.cloud.dataflow_v1beta3 import types
from google.protobuf import json_format

PROJECT, REGION = "my-project", "europe-west4"
State = types.JobState
ACTIVE = {
    *(State.JOB_STATE_PENDING, State.JOB_STATE_QUEUED, State.JOB_STATE_RUNNING),
    *(State.JOB_STATE_DRAINING, State.JOB_STATE_CANCELLING),
}
_MANY_JOBS = r"/v1b3/projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)/jobs"
_ONE_JOB = _MANY_JOBS + r"/(?P<job_id>[^/]+)"


@dataclass(frozen=True)
class RefusalError(Exception):
    """An error as Google's APIs answer it."""

    code: int
    status: str
    message: str


# As the service words it; it puts a number of its own before each sentence.
NO_WRITE_ACCESS = RefusalError(
    403,
    "PERMISSION_DENIED",
    f"(f72a1bd1e0f3c1f9): Could not create workflow; user does not have write access to project: "
    f"{PROJECT} Causes: (f72a1bd1e0f3c8a4): Permission 'dataflow.jobs.create' denied on project: "
    f"'{PROJECT}'",
)


@dataclass
class _Life:
    """A job as the service sees it."""

    job: types.Job
    states: list[types.JobState]
    messages: list[types.JobMessage] = field(default_factory=list)


class DataflowApi:
    """The service. `endpoint` is for --dataflow_endpoint, `credentials` for the environment."""

    def __init__(self, folder: Path):
        # Beam speaks REST to an endpoint of this name only, and gRPC to others.
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.endpoint = f"http://localhost:{self._server.server_port}"
        self.credentials = _write_credentials(folder)
        self._lock = threading.Lock()
        self._lives: dict[str, _Life] = {}
        self._workers: list[threading.Thread] = []
        # What a test may set before a job comes.
        self.states: list[types.JobState] = [State.JOB_STATE_RUNNING, State.JOB_STATE_DONE]
        self.messages: list[tuple[types.JobMessageImportance, str]] = []
        self.worker: Callable[[types.Job], None] | None = None
        self.refusal: RefusalError | None = None
        self.returns_active_job = False
        # What a test may look at.
        self.requests: list[str] = []

    @property
    def jobs(self) -> list[types.Job]:
        """All jobs that were taken, in order, as they were sent, with the id that they got."""
        with self._lock:
            return [life.job for life in self._lives.values()]

    def set_states(self, job_id: str, *states: types.JobState) -> None:
        """Lets a job show these states from now on, the last one for good."""
        with self._lock:
            self._lives[job_id].states = list(states)

    def __enter__(self) -> "DataflowApi":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for worker in self._workers:
            worker.join(60)

    # --- the methods of the API ------------------------------------------------------------------

    def create_job(self, body: bytes, project: str, region: str) -> types.Job:
        self._check_place(project, region)
        try:
            job = _parse(types.Job, body)
        except json_format.ParseError as error:
            raise RefusalError(400, "INVALID_ARGUMENT", f"Invalid JSON payload: {error}") from error
        if self.refusal:
            raise self.refusal
        with self._lock:
            for life in self._lives.values():
                if life.job.name == job.name and life.states[0] in ACTIVE:
                    if self.returns_active_job:  # the service does either
                        return self._seen(life)
                    text = f"There is already an active job named {job.name}. If you want to submit"
                    text += " a second job, try again by setting a different name."
                    raise RefusalError(409, "ALREADY_EXISTS", f"(c2f25a0f2b1c7d3e): {text}")
            now = datetime.datetime.now(datetime.UTC)
            job.id = f"{now:%Y-%m-%d_%H_%M_%S}-{1_000_000_000 + len(self._lives)}"
            job.project_id, job.location, job.create_time = project, region, now
            messages = [
                types.JobMessage(
                    id=str(at), time=now, message_text=text, message_importance=importance
                )
                for at, (importance, text) in enumerate(self.messages)
            ]
            states = [State.JOB_STATE_RUNNING] if self.worker else list(self.states)
            life = self._lives[job.id] = _Life(job, states, messages)
            if self.worker:
                self._workers.append(threading.Thread(target=self._work, args=(life,)))
                self._workers[-1].start()
            return self._seen(life)

    def get_job(self, job_id: str, project: str, region: str) -> types.Job:
        with self._lock:
            life = self._life(job_id, project, region)
            answer = self._seen(life)
            if len(life.states) > 1:
                life.states.pop(0)
            return answer

    def list_jobs(self, query: dict[str, str], project: str, region: str) -> types.ListJobsResponse:
        self._check_place(project, region)
        active = types.ListJobsRequest.Filter.ACTIVE
        only_active = query.get("filter") in (str(int(active)), "ACTIVE")
        with self._lock:
            lives = [
                life
                for life in self._lives.values()
                if not (only_active and life.states[0] not in ACTIVE)
                and query.get("name", life.job.name) == life.job.name
            ]
            return types.ListJobsResponse(jobs=[self._seen(life) for life in lives])

    def list_messages(
        self, job_id: str, project: str, region: str
    ) -> types.ListJobMessagesResponse:
        with self._lock:
            return types.ListJobMessagesResponse(
                job_messages=self._life(job_id, project, region).messages
            )

    def get_metrics(self, job_id: str, project: str, region: str) -> types.JobMetrics:
        with self._lock:
            return types.JobMetrics(metric_time=self._life(job_id, project, region).job.create_time)

    def _work(self, life: _Life) -> None:
        assert self.worker
        try:
            self.worker(life.job)
        except Exception as error:
            state, importance = State.JOB_STATE_FAILED, "JOB_MESSAGE_ERROR"
            text = str(error)
        else:
            state, importance = State.JOB_STATE_DONE, "JOB_MESSAGE_BASIC"
            text = "Stopped: all steps are done."
        message = types.JobMessage(
            id="last",
            time=datetime.datetime.now(datetime.UTC),
            message_text=text,
            message_importance=types.JobMessageImportance[importance],
        )
        with self._lock:
            life.messages.append(message)
            life.states = [state]

    def _life(self, job_id: str, project: str, region: str) -> _Life:
        self._check_place(project, region)
        if job_id not in self._lives:
            text = f"Information about job {job_id} could not be found in our system."
            raise RefusalError(404, "NOT_FOUND", text)
        return self._lives[job_id]

    def _check_place(self, project: str, region: str) -> None:
        if (project, region) != (PROJECT, REGION):
            raise RefusalError(404, "NOT_FOUND", f"no {project} and {region} in this fake")

    @staticmethod
    def _seen(life: _Life) -> types.Job:
        """What the API tells of a job: no environment, but the state."""
        return types.Job(
            id=life.job.id,
            name=life.job.name,
            project_id=life.job.project_id,
            location=life.job.location,
            type_=life.job.type_,
            client_request_id=life.job.client_request_id,
            create_time=life.job.create_time,
            current_state=life.states[0],
        )


def _parse(kind: Any, body: bytes) -> Any:
    return kind.wrap(json_format.Parse(body, kind.pb(kind())))


def _write_credentials(folder: Path) -> Path:
    """Writes credentials whose token holds, so that no client asks for one, or waits in vain."""
    path = folder / "credentials.json"
    user = {
        "type": "authorized_user",
        "client_id": "1",
        "client_secret": "2",
        "refresh_token": "3",
        "token": "token",
        "expiry": "2100-01-01T00:00:00Z",
        "quota_project_id": PROJECT,
    }
    path.write_text(json.dumps(user))
    return path


def _handler(api: DataflowApi) -> type[BaseHTTPRequestHandler]:
    """Returns the class that answers the requests to `api`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        do_POST = do_PUT = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            api.requests.append(format % args)

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                code, answer = 200, self._result(body)
            except RefusalError as error:
                code = error.code
                answer = json.dumps(
                    {"error": {"code": code, "message": error.message, "status": error.status}}
                )
            data = answer.encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _result(self, body: bytes) -> str:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            for method, pattern, function, takes in _ROUTES:
                match = re.fullmatch(pattern, url.path)
                if match and method == self.command:
                    given = {"body": body, "query": query}
                    result = function(api, *[given[name] for name in takes], **match.groupdict())
                    return json_format.MessageToJson(
                        type(result).pb(result), use_integers_for_enums=True
                    )
            raise RefusalError(404, "NOT_FOUND", f"no {self.command} {url.path} in this fake")

    return Handler


_ROUTES: list[tuple[str, str, Callable[..., Any], tuple[str, ...]]] = [
    ("POST", _MANY_JOBS, DataflowApi.create_job, ("body",)),
    ("GET", _MANY_JOBS, DataflowApi.list_jobs, ("query",)),
    ("GET", _ONE_JOB, DataflowApi.get_job, ()),
    ("GET", _ONE_JOB + "/messages", DataflowApi.list_messages, ()),
    ("GET", _ONE_JOB + "/metrics", DataflowApi.get_metrics, ()),
]
