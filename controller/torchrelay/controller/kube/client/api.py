"""The Kubernetes API as far as the controller needs it. Objects are plain dicts, so that no field of a newer version is lost.

lightkube's typed models drop fields that they do not know; its generic resources keep them, which a copy of a pod needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError, ConfigError, LoadResourceError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource, get_generic_resource
from lightkube.types import OnErrorHandler, PatchType

from torchrelay.controller.kube.client.api_calls import ApiCalls
from torchrelay.protocol.errors import FatalError, RetryableError
from torchrelay.protocol.kube.kube_names import GROUP, VERSION
from torchrelay.protocol.metrics.table import ANSWERED, AWAY, REFUSED

log = logging.getLogger(__name__)

Object = dict[str, Any]
ALL = "*"
NOT_FOUND = 404
CONFLICT = 409
PAGE = 200
"""Objects in one answer of a list."""
_LASTING = (400, 401, 403, 404, 405, 409, 422)
"""Answers that the same request gets again; any other answer may change."""


@dataclass(frozen=True)
class ObjectKind:
    """One kind of object. `resource` is lightkube's class for it.

    `has_authors`: it is of use which programs have written it. This is large, and elsewhere left out.
    """

    name: str
    resource: Any
    namespaced: bool = True
    version: str = "v1"
    has_authors: bool = False


PODS = ObjectKind("Pod", create_namespaced_resource("", "v1", "Pod", "pods"))
NODES = ObjectKind(  # of the core group lightkube makes a class once in a process, and the commands have one, too
    "Node", get_generic_resource("v1", "Node") or create_global_resource("", "v1", "Node", "nodes"), namespaced=False
)
CLAIMS = ObjectKind(
    "PersistentVolumeClaim",
    create_namespaced_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
)
EVENTS = ObjectKind(  # so it is here
    "Event", get_generic_resource("v1", "Event") or create_namespaced_resource("", "v1", "Event", "events")
)
SECRETS = ObjectKind("Secret", create_namespaced_resource("", "v1", "Secret", "secrets"))
CONFIG_MAPS = ObjectKind("ConfigMap", create_namespaced_resource("", "v1", "ConfigMap", "configmaps"))
LEASES = ObjectKind("Lease", create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases"))
BUDGETS, BUDGETS_BETA = (
    ObjectKind(
        "PodDisruptionBudget",
        create_namespaced_resource("policy", version, "PodDisruptionBudget", "poddisruptionbudgets"),
        version=f"policy/{version}",
    )
    for version in ("v1", "v1beta1")
)
ENDPOINT_SLICES, ENDPOINT_SLICES_BETA = (
    ObjectKind(
        "EndpointSlice",
        create_namespaced_resource("discovery.k8s.io", version, "EndpointSlice", "endpointslices"),
        version=f"discovery.k8s.io/{version}",
    )
    for version in ("v1", "v1beta1")
)
ROLES = ObjectKind("Role", create_namespaced_resource("rbac.authorization.k8s.io", "v1", "Role", "roles"))
CLUSTER_ROLES = ObjectKind(
    "ClusterRole",
    create_global_resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles"),
    namespaced=False,
)
TOKEN_REVIEWS = ObjectKind(
    "TokenReview",
    create_global_resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews"),
    namespaced=False,
)
MIGRATIONS = ObjectKind("Migration", create_namespaced_resource(GROUP, VERSION, "Migration", "migrations"))
TRAINING_JOBS = ObjectKind("TrainingJob", create_namespaced_resource(GROUP, VERSION, "TrainingJob", "trainingjobs"))
SPARE_POOLS = ObjectKind(
    "SparePool", create_namespaced_resource(GROUP, VERSION, "SparePool", "sparepools"), has_authors=True
)
QUARANTINES = ObjectKind(
    "Quarantine",
    create_global_resource(GROUP, VERSION, "Quarantine", "quarantines"),
    namespaced=False,
    has_authors=True,
)


class Refused(FatalError):
    """The API server says no, and will again. `code` is the HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Api:
    """The API. Its methods raise RetryableError where the API server is away or overloaded, Refused where it says no."""

    def __init__(self, client: AsyncClient, calls: ApiCalls | None = None) -> None:
        self._client = client
        self.calls = calls or ApiCalls()

    def _errors(self, verb: str, kind: ObjectKind, name: str = "") -> _errors:
        return _errors(self.calls, verb, kind, name)

    async def list(
        self, kind: ObjectKind, namespace: str = ALL, labels: dict[str, Any] | None = None
    ) -> tuple[list[Object], str]:
        """Return the objects, and the version of the list to watch from."""
        found: list[Object] = []
        return found, await self.scan(kind, found.append, namespace, labels)

    async def scan(
        self,
        kind: ObjectKind,
        take: Callable[[Object], None],
        namespace: str = ALL,
        labels: dict[str, Any] | None = None,
    ) -> str:
        """Give each object to `take`. Return the version to watch from. Only some objects are in memory at a time."""
        with self._errors("list", kind):
            more: dict[str, Any] = {"namespace": namespace} if kind.namespaced else {}
            listed = self._client.list(kind.resource, labels=labels, chunk_size=PAGE, **more)
            async for found in listed:
                take(dict(found))
            return str(listed.resourceVersion)

    async def watch(
        self, kind: ObjectKind, version: str, namespace: str = ALL, labels: dict[str, Any] | None = None
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield `ADDED`, `MODIFIED` or `DELETED`, with the object.

        It ends by an error. List again after that: there may be a gap.
        """
        with self._errors("watch", kind):
            more: dict[str, Any] = {"namespace": namespace} if kind.namespaced else {}
            stop: OnErrorHandler = _raise
            changes = self._client.watch(kind.resource, labels=labels, resource_version=version, on_error=stop, **more)
            try:
                async for what, found in changes:
                    yield what, dict(found)
            except ValueError as e:  # a connection that breaks in the middle of a line leaves half an object
                raise RetryableError(f"{kind.name}: an object that cannot be read: {e}") from e

    async def get(self, kind: ObjectKind, name: str, namespace: str | None = None) -> Object | None:
        """Return the object, or None where there is none of the name."""
        try:
            with self._errors("get", kind, name):
                return dict(await self._client.get(kind.resource, name, **_in(kind, namespace)))
        except Refused as e:
            if e.code == NOT_FOUND:
                return None
            raise

    async def create(self, kind: ObjectKind, manifest: Object) -> Object:
        with self._errors("create", kind, manifest.get("metadata", {}).get("name", "")):
            return dict(await self._client.create(kind.resource(manifest)))

    async def replace(self, kind: ObjectKind, manifest: Object) -> Object:
        """Replace an object. Raises Refused with CONFLICT where another client was faster."""
        with self._errors("replace", kind, manifest["metadata"]["name"]):
            return dict(await self._client.replace(kind.resource(manifest)))

    async def patch(
        self, kind: ObjectKind, name: str, patch: Object, namespace: str | None = None, status: bool = False
    ) -> Object:
        """Apply a merge patch to the object, or to its status subresource (`status`)."""
        with self._errors("patch", kind, name):
            resource = kind.resource.Status if status else kind.resource
            patched = await self._client.patch(
                resource, name, patch, patch_type=PatchType.MERGE, **_in(kind, namespace)
            )
            return dict(patched)

    async def delete(
        self, kind: ObjectKind, name: str, namespace: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete an object. One that is gone already is no error."""
        try:
            with self._errors("delete", kind, name):
                await self._client.delete(kind.resource, name, grace_period=grace_s, **_in(kind, namespace))
        except Refused as e:
            if e.code != NOT_FOUND:
                raise


def connect() -> Api:
    """Connect with the configuration of the pod that this runs in, or of KUBECONFIG. Raises FatalError without either."""
    try:
        return Api(AsyncClient(field_manager="torchrelay", trust_env=True))
    except (ConfigError, LoadResourceError) as e:
        raise FatalError(f"no way to the Kubernetes API: {e}") from e


def _in(kind: ObjectKind, namespace: str | None) -> dict[str, Any]:
    return {"namespace": namespace} if kind.namespaced else {}


def _raise(error: Exception, count: int) -> Any:
    raise error


class _errors:  # reads as a statement
    def __init__(self, calls: ApiCalls, verb: str, kind: ObjectKind, name: str = "") -> None:
        self._calls = calls
        self._verb = verb
        self._began_s = time.monotonic()
        self._what = f"{kind.name} {name}".strip()

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._calls.over(self._verb, _outcome(error), self._began_s)
        if isinstance(error, ApiError):
            text = f"{self._what}: {error.status.message or error}"
            if error.status.code in _LASTING:
                raise Refused(error.status.code, text) from error
            raise RetryableError(text) from error
        if isinstance(error, (httpx2.HTTPError, httpx2.StreamError, OSError)):
            raise RetryableError(f"{self._what}: the API server cannot be reached: {error}") from error


def _outcome(error: BaseException | None) -> str:
    if isinstance(error, ApiError):
        return REFUSED if error.status.code in _LASTING else AWAY
    return ANSWERED if error is None else AWAY
