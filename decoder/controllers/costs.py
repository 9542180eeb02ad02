"""L1: what rounds cost, measured on the device at hand.

A round of drafted width n takes D(n) + v(n + 1) seconds: D(n) is the drafter's, v(m) everything else of a round that
verifies m tokens (the target's forward, warping, verification, the host). Both are **measured per point**, because
v is neither flat nor linear: on processors float32 jumps two- to threefold from m = 1 to m = 2 and is flat after,
bfloat16 is flat from the start, and a GPU steps where its tiles end. The first proposal after a pause also reads what
the drafter has missed; that is kept apart.

Knows nothing of acceptance, nor of what is decided with these numbers.
"""

from __future__ import annotations

from collections import deque

_WINDOW = 17  # samples a running median looks at; long, because a change of load is the pace's to follow
_SETTLED = 9  # samples after which a point needs no second look
_BELIEVED = 5  # samples after which a point stands for itself, and leans on its neighbours no more
_NOISE = 1.2  # a round's time over the expected one, up to which it is mostly noise
_FOLLOW_NOISE, _FOLLOW = 0.1, 0.5  # share of a surprise (its logarithm) that the pace takes over: within noise, beyond
_SURPRISE = 1.5  # the largest ratio it believes: one delay is not a load
_TRUSTED = 2  # samples before a point counts as measured
_STALE = 512  # rounds after which a point not visited is forgotten, and so measured again
_FIRST_PLAIN_GAP, _LAST_PLAIN_GAP = 8, 128  # rounds between measurements of v(1) while drafting
_OVERDUE = 4  # times as many where drafting is clearly faster
_FIXED_DOUBT = 1.0  # samples that speak against a fixed part of the drafter's time
_READING = 4  # missed tokens from which a proposal's time is mostly reading


def lower_median(samples: deque[float]) -> float:
    """The middle sample, the lower one of two: a delay from outside only ever adds time."""
    return sorted(samples)[(len(samples) - 1) // 2]


class Curve:
    """Seconds against a small whole number, measured point by point and never smoothed across points.

    A point sampled five times is the running median of its samples; one sampled less leans on the others, because in a
    short text, on a machine with other work, two samples say little. `proportional` (a draft model's steps): on a line
    through all samples. Otherwise (the target): on its left neighbour, the least that a rising cost can be there; a
    point seen below its left neighbour shares one value with it. So a point looks no dearer than it may turn out, is
    tried where it could pay, and is measured from then on; a line would hide what lies just before a cliff. A point
    sampled once is the smaller of its sample and that estimate, so one slow first call condemns nothing. v(1) stands
    for itself.
    """

    def __init__(self, most: int, *, proportional: bool) -> None:
        self._most = most
        self._proportional = proportional
        self._samples: dict[int, deque[float]] = {}
        self._visited: dict[int, int] = {}
        self._now = 0
        self._table: list[float] | None = None

    def __bool__(self) -> bool:
        return bool(self._samples)

    def add(self, n: int, seconds: float) -> None:
        self._now += 1
        self._samples.setdefault(n, deque(maxlen=_WINDOW)).append(seconds)
        self._visited[n] = self._now
        self._table = None
        if self._now % 64 == 0:
            for old in [m for m, seen in self._visited.items() if self._now - seen > _STALE and m != 1]:
                del self._samples[old], self._visited[old]

    def count(self, n: int) -> int:
        return len(self._samples.get(n, ()))

    def settled(self, n: int) -> bool:
        """Sampled well enough to need no second look."""
        return self.count(n) >= _SETTLED

    def known(self, n: int) -> bool:
        """Sampled well enough at n, or on the whole on both sides of it; where one token is verified apart."""
        if self.settled(n):
            return True
        others = [m for m in self._samples if m > 1 or self._proportional]
        return n > 1 and n <= max(others, default=0) and sum(map(self.count, others)) >= _SETTLED

    def measured(self, n: int) -> bool:
        return self.count(n) >= _TRUSTED

    def at(self, n: int) -> float:
        """table()[n], without making the table where n is measured."""
        return lower_median(self._samples[n]) if self.measured(n) else self.table()[n]

    def table(self) -> list[float]:
        """Seconds at 0 ... most; all 0 before the first sample."""
        if self._table is None:
            self._table = self._estimate()
        return self._table

    def _estimate(self) -> list[float]:
        medians = {n: lower_median(samples) for n, samples in sorted(self._samples.items())}
        if not medians:
            return [0.0] * (self._most + 1)
        return self._line(medians) if self._proportional else self._stairs(medians)

    def _line(self, medians: dict[int, float]) -> list[float]:
        """a + b n by least squares, a held near 0; a point moves to its own median as its samples come."""
        fixed, step = _fit([(n, seconds, self.count(n)) for n, seconds in medians.items() if n] or [(0, medians[0], 1)])
        table = [fixed + step * n for n in range(self._most + 1)]
        for n, seconds in medians.items():
            table[n] += self._trust(n) * (seconds - table[n])
        return table

    def _stairs(self, medians: dict[int, float]) -> list[float]:
        """Never falling: a point below its left neighbour shares its value; a step up is believed by and by."""
        points = [n for n in medians if self.measured(n)] or list(medians)
        several = [n for n in points if n > 1]  # tokens; one alone is the yardstick and stands for itself
        level = dict(zip(several, _rising([(medians[n], self.count(n)) for n in several]), strict=True))
        table: list[float] = []
        now = medians[points[0]]
        for n in range(self._most + 1):
            if n in level:
                now += (1.0 if n == several[0] else self._trust(n)) * (level[n] - now)
            table.append(min(now, medians[n]) if n not in level and n in medians else now)
        return table

    def _trust(self, n: int) -> float:
        return min(1.0, self.count(n) / _BELIEVED)


def _fit(points: list[tuple[int, float, int]]) -> tuple[float, float]:
    """(a, b) of seconds = a + b n from (n, seconds, weight); both at least 0, and a 0 where nothing speaks for more."""
    w = sum(weight for _, _, weight in points)
    x = sum(weight * n for n, _, weight in points)
    y = sum(weight * seconds for _, seconds, weight in points)
    xx = sum(weight * n**2 for n, _, weight in points)
    xy = sum(weight * n * seconds for n, seconds, weight in points)
    if xx == 0:
        return y / w, 0.0
    a = max(0.0, (y * xx - x * xy) / ((w + _FIXED_DOUBT) * xx - x * x))
    return a, max(0.0, (xy - a * x) / xx)


def _rising(points: list[tuple[float, int]]) -> list[float]:
    """Isotonic least squares (pool adjacent violators): the nearest never-falling values to (value, weight)."""
    blocks: list[tuple[float, int, int]] = []  # value, weight, points
    for value, weight in points:
        size = 1
        while blocks and blocks[-1][0] > value:
            above, heavy, many = blocks.pop()
            value = (value * weight + above * heavy) / (weight + heavy)
            weight, size = weight + heavy, size + many
        blocks.append((value, weight, size))
    return [value for value, _, size in blocks for _ in range(size)]


class Costs:
    """The costs of one batch size. `most`: the longest draft."""

    def __init__(self, most: int) -> None:
        self.draft = Curve(most, proportional=True)  # D(n)
        self.rest = Curve(most + 1, proportional=False)  # v(m)
        self._per_missed: deque[float] = deque(maxlen=_SETTLED)
        self._first_reading: tuple[float, int, int] | None = None  # (seconds, width, missed), until D is known
        self._since_plain, self._plain_gap = 0, _FIRST_PLAIN_GAP
        self._pace = 1.0  # how slow the machine is now

    def observe(self, width: int, draft_s: float | None, rest_s: float, missed: int) -> None:
        """One round: `draft_s` is None when the drafter was not asked; it had missed `missed` tokens before."""
        self._follow(width + 1, rest_s)
        self.rest.add(width + 1, rest_s / self._pace)
        self._since_plain += 1
        if width == 0 and self.plain_known:
            if self.plain_due:
                self._plain_gap = min(2 * self._plain_gap, _LAST_PLAIN_GAP)
            self._since_plain = 0
        if draft_s is None:
            return
        if missed < _READING:
            self.draft.add(width, draft_s / self._pace)
            if self._first_reading is not None:
                self._learn_reading(*self._first_reading)
                self._first_reading = None
        elif self.draft:
            self._learn_reading(draft_s, width, missed)
        else:
            self._first_reading = (draft_s, width, missed)

    def _follow(self, m: int, seconds: float) -> None:
        """Let the pace follow what a round took. A width not measured yet is estimated by the least it can be, so it
        speaks of the load only where it took less."""
        if not self.rest:
            return
        surprise = seconds / max(self._pace * self.rest.at(m), 1e-12)
        most = _SURPRISE if self.rest.measured(m) else 1.0
        share = _FOLLOW_NOISE if 1.0 / _NOISE < surprise < _NOISE else _FOLLOW
        self._pace *= min(max(surprise, 1.0 / _SURPRISE), most) ** share

    def _learn_reading(self, draft_s: float, width: int, missed: int) -> None:
        self._per_missed.append(self._beyond_drafting(draft_s, width) / missed)

    def _beyond_drafting(self, draft_s: float, width: int) -> float:
        return max(0.0, draft_s - self._pace * self.draft.table()[width])

    @property
    def plain_known(self) -> bool:
        """v(1), the yardstick, is measured."""
        return self.rest.measured(1)

    def drafting_known(self, width: int) -> bool:
        """A round of this width has a well-measured cost, its own or that of the widths around it."""
        return self.rest.known(width + 1) and self.draft.known(width)

    @property
    def plain_due(self) -> bool:
        """v(1) should be measured again; it costs a round without a draft."""
        return self._since_plain >= self._plain_gap

    @property
    def plain_overdue(self) -> bool:
        """The same, where little depends on it."""
        return self._since_plain >= _OVERDUE * self._plain_gap

    @property
    def plain_s(self) -> float:
        """v(1): a round that drafts nothing. v does not fall with m: a lower point elsewhere puts v(1) out of date."""
        return self._pace * min(self.rest.table()[1:])

    def round_s(self) -> list[float]:
        """D(n) + v(n + 1) for n = 0 ... most."""
        draft, rest = self.draft.table(), self.rest.table()
        return [self._pace * (draft_s + rest[n + 1]) for n, draft_s in enumerate(draft)]

    def reading_s(self, missed: int) -> float:
        """What the next proposal costs more because the drafter has missed this many tokens."""
        if missed < _READING or not self._per_missed:
            return 0.0
        return missed * lower_median(self._per_missed)

    def reading_part(self, width: int, draft_s: float, missed: int) -> float:
        """How much of a proposal's seconds went into reading."""
        if missed < _READING:
            return 0.0
        return self._beyond_drafting(draft_s, width) if self.draft else draft_s
