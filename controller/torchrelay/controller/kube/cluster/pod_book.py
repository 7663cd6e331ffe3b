"""All pods of ours, by uid, and by job at no cost."""

from __future__ import annotations

from collections import UserDict

from torchrelay.controller.kube.cluster.pods import JobKey, Pod

GONE_KEPT = 10_000


class PodBook(UserDict[str, Pod]):
    def __init__(self) -> None:
        self._of: dict[JobKey, dict[str, Pod]] = {}
        self._gone: dict[str, None] = {}
        """The newest that were deleted: an agent on a node that is cut off goes on asking, and no uid comes twice."""
        super().__init__()

    def __setitem__(self, uid: str, pod: Pod) -> None:
        if (before := self.data.get(uid)) is not None and before.key != pod.key:
            self._forget(before)
        super().__setitem__(uid, pod)
        self._of.setdefault(pod.key, {})[uid] = pod

    def __delitem__(self, uid: str) -> None:
        self._forget(self.data[uid])
        super().__delitem__(uid)
        self._gone[uid] = None
        if len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]

    def is_gone(self, uid: str) -> bool:
        """Whether there was such a pod, and it was deleted."""
        return uid in self._gone

    def of(self, key: JobKey) -> list[Pod]:
        """Those of one job."""
        return list(self._of.get(key, {}).values())

    def _forget(self, pod: Pod) -> None:
        """Of its job."""
        ours = self._of[pod.key]
        del ours[pod.uid]
        if not ours:
            del self._of[pod.key]
