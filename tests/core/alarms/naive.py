"""A second implementation of alarms, without code of the evaluator, for one series.

It keeps every query, and recomputes sums, reference and windows at each tick.
"""

# ruff: noqa: N806, C408 (names and shapes are those of the formulas)

import zlib
from math import fsum, sqrt
from statistics import NormalDist

Q = NormalDist().inv_cdf(0.9)
SE2 = 0.06 * 0.06


def clip(x, low, high):
    return min(high, max(low, x))


class Naive:
    def __init__(self, kind="own", tol=0.01, series=20, budget=30, constant=None):
        self.kind, self.tol, self.series, self.budget = kind, tol, series, budget
        self.constant = constant
        self.quarters = {}  # quarter hour -> unit -> [queries, units]
        self.hours = {}  # hour -> n, V, Q, X, Y
        self.out = set()
        self.announced = set()
        self.ref = None
        self.alarm = None
        self.week = None
        self.moved, self.moved_hour = 0.0, None
        self.evidence = 0.0
        self.events = []

    def query(self, time_ms, trace, units):
        unit = zlib.crc32(trace.encode()) % 65536
        of = self.quarters.setdefault(time_ms // 900_000, {}).setdefault(unit, [0, 0])
        of[0] += 1
        of[1] += units

    def close(self, quarter):
        hour = quarter // 4
        n, V, S, X, Y = self.hours.get(hour, (0, 0, 0, 0, 0))
        for k, units in self.quarters.pop(quarter, {}).values():
            v = units >> 20
            n, V, S, X, Y = n + k, V + units, S + v * v, X + v * k, Y + k * k
        if n:
            self.hours[hour] = (n, V, S, X, Y)

    def hour(self, h):
        if h in self.out or h in self.announced:
            return (0, 0, 0, 0, 0)
        return self.hours.get(h, (0, 0, 0, 0, 0))

    # 1. and 2.

    def parts(self, weeks, mu=None):
        n = [sum(self.hour(w * 168 + 96 + i)[0] for w in weeks) for i in range(168)]
        V = [fsum(self.hour(w * 168 + 96 + i)[1] / 2**40 for w in weeks) for i in range(168)]
        if mu is None:
            mu = fsum(V) / sum(n)
        r = [V[i] - n[i] * mu for i in range(168)]
        day = []
        for d in range(7):
            cells = [i for i in range(168) if i // 24 == d]
            k = sum(n[i] for i in cells)
            day.append(fsum(r[i] for i in cells) / k if k else 0.0)
        r = [r[i] - n[i] * day[i // 24] for i in range(168)]
        time = []
        for t in range(24):
            cells = [i for i in range(168) if i % 24 == t]
            k = sum(n[i] for i in cells)
            time.append(fsum(r[i] for i in cells) / k if k else 0.0)
        a = [mu + day[i // 24] + time[i % 24] for i in range(168)]
        rest = [V[i] / n[i] - a[i] if n[i] else 0.0 for i in range(168)]
        return mu, a, rest

    def profile(self, weeks):
        mu, a, rest = self.parts(weeks)
        if len(weeks) == 1:
            return mu, a
        even = self.parts([w for p, w in enumerate(weeks) if p % 2 == 0], mu)[2]
        odd = self.parts([w for p, w in enumerate(weeks) if p % 2 == 1], mu)[2]
        top = fsum(even[i] * odd[i] for i in range(168))
        bottom = fsum((even[i] * even[i] + odd[i] * odd[i]) / 2 for i in range(168))
        b = clip(top / max(bottom, 1e-12), 0, 1)
        share = 2 * b / (1 + b)
        return mu, [a[i] + share * rest[i] for i in range(168)]

    # 3.

    def fit(self, week):
        usable = []
        for w in range(week - 8, week):
            first = w * 168 + 96
            days = [any(self.hour(first + 24 * d + t)[0] for t in range(24)) for d in range(7)]
            if sum(days) >= 5:
                usable.append(w)
        K = len(usable)
        if K < 2:
            return
        c = min(4, max(2, K - 1))
        lag = min(3, K - c)
        weeks = usable[: K - lag][-c:]
        mu, m = self.profile(weeks)
        every = [self.hour(w * 168 + 96 + i) for w in weeks for i in range(168)]
        N, S, X, Y = (sum(of[k] for of in every) for k in (0, 2, 3, 4))
        s2 = max(1e-4, (S / 2**40 - 2 * mu * (X / 2**20) + mu * mu * Y) / N)
        res = []
        for w in weeks:
            other = self.profile([x for x in weeks if x != w])[1]
            for i in range(168):
                n, V, *_ = self.hour(w * 168 + 96 + i)
                res.append(V / 2**40 - n * other[i])
        counts = [of[0] for of in every]
        days = 7 * c
        F = (1 - 2 / (9 * days) - Q * sqrt(2 / (9 * days))) ** -3
        beta, tau2 = {24: 0.0, 168: 0.0}, {}
        for w in (1, 6, 24):
            D, P, p, chance = [], [], [], []
            for start in range(24, 168 * c, w):
                n = sum(counts[start : start + w])
                before = sum(counts[start - 24 : start])
                D.append(fsum(res[start : start + w]) / n if n else 0.0)
                P.append(fsum(res[start - 24 : start]) / before if before else 0.0)
                chance.append(s2 / max(n, 1))
                bad = n == 0 or s2 / n > SE2
                p.append(0.0 if bad else (s2 / n + self.tol * self.tol) ** -2)
            all_p = fsum(p)
            p = [x / all_p if all_p else 0.0 for x in p]
            J = range(len(D))
            if w < 24:
                top, bottom = (
                    fsum(p[j] * D[j] * P[j] for j in J),
                    fsum(p[j] * P[j] * P[j] for j in J),
                )
                beta[w] = clip(top / bottom, 0, 1) if bottom else 0.0
            left = [D[j] - beta[w] * P[j] for j in J]
            t2 = fsum(p[j] * (left[j] * left[j] - chance[j]) for j in J)
            err = sqrt(2 / len(D)) * fsum(p[j] * chance[j] for j in J)
            floor = 0.3 * self.tol
            tau2[w] = max(max(t2, 0) * F + Q * err, floor * floor)
        lagged = [D[j] * D[j + 1] for j in range(len(D) - 1)]
        rho = clip(fsum(lagged) / len(lagged) / max(t2, err, 1e-12), 0, 0.95)
        rho = min(0.95, rho + Q / sqrt(days))

        def ratio(k):
            return fsum([k] + [2 * (k - i) * rho**i for i in range(1, k)]) / k**2

        tau2[168] = tau2[24] * ratio(7) + tau2[24] * ratio(days) + s2 / N
        self.ref = dict(m=m, mu=mu, s2=s2, beta=beta, tau2=tau2, days=days)
        if self.moved_hour is not None and weeks[0] * 168 + 96 >= self.moved_hour:
            self.moved = 0.0

    # 4.

    def reference(self, h):
        if self.kind != "constant":
            return self.ref
        last = [self.hour(k) for k in range(h - 167, h + 1)]
        n, V, S, X, Y = map(sum, zip(*last, strict=True))
        if n < 100:
            return None
        mu = V / 2**40 / n
        s2 = 1.2 * max(1e-4, (S / 2**40 - 2 * mu * (X / 2**20) + mu * mu * Y) / n)
        floor = 0.3 * self.tol
        return dict(
            m=[self.constant] * 168,
            mu=self.constant,
            s2=s2,
            beta=dict.fromkeys((1, 6, 24, 168), 0.0),
            tau2=dict.fromkeys((1, 6, 24, 168), floor * floor),
        )

    def lack(self, h, of, ref):
        n, V, *_ = of
        return V / 2**40 - n * ref["m"][(h - 96) % 168]

    def too_few_hours(self, n, gone):
        few = 6 * sum(n) ** 2 < sum([k * k for k in n]) * len(n)
        return few or sum(gone) > len(gone) / 2

    def looks(self, h, ref):
        span = range(h - 191, h + 1)
        sums = [self.hour(k) for k in span]
        lacks = [self.lack(k, of, ref) for k, of in zip(span, sums, strict=True)]
        counts = [of[0] for of in sums]
        gone = [k in self.out or k in self.announced for k in span]
        for w in (1, 6, 24, 168):
            of = slice(max(h - w, self.begin(h)) + 1 - span[0], len(span))
            n = sum(counts[of])
            if n == 0 or self.chance(span[of], n, ref) > SE2:
                continue
            if self.too_few_hours(counts[of], gone[of]):
                continue
            D = fsum(lacks[of]) / n
            day = slice(len(span) - w - 24, len(span) - w)
            n_day = sum(counts[day])
            P = 0.0
            if n_day and not self.too_few_hours(counts[day], gone[day]):
                P = min(fsum(lacks[day]) / n_day, 2 * sqrt(ref["tau2"][24]))
            C = D - ref["beta"][w] * P
            sd = sqrt(self.chance(span[of], n, ref) + ref["tau2"][w] + self.moved)
            looks = 4 * self.series * 3 * 24 * self.budget
            z = round(-NormalDist().inv_cdf(w / looks), 4)
            if self.kind != "pair":
                mu = ref["mu"]
                v = max(mu * (1 - mu), 1e-3)
                g = max(0, 2 * mu - 1) / sqrt(v) * sqrt(ref["s2"] / n / v)
                g *= (sqrt(ref["s2"] / n) / sd) ** 3
                z = z + (z * z - 1) * g / 6
            most = 1 if self.kind == "pair" else ref["mu"]
            z = max(z, 3 * most * sum(each[4] for each in sums[of]) / (n * n) / sd)
            yield w, C, sd, z, n, self.observed(n, C, sums[of])

    def chance(self, hours, n, ref):
        return ref["s2"] / n

    def observed(self, n, change, sums):
        return sum([of[1] for of in sums]) / (n * 2**40)

    def gone(self, h):
        return not any(self.hours.get(k, (0,))[0] for k in range(h - 167, h + 1))

    def begin(self, h):
        """Windows begin after this hour."""
        return h - 168

    # 5.

    def tick(self, end):
        self.close(end // 900_000 - 1)
        h = (end - 1) // 3_600_000
        if self.week != (h - 96) // 168:
            self.week = (h - 96) // 168
            if self.alarm is None and self.kind in ("own", "pair"):
                self.fit(self.week)
        ref = self.reference(h)
        self.evidence = 0.0
        looks = [] if ref is None else list(self.looks(h, ref))
        if looks:
            self.evidence = max(min(-C / sd / z, -C / self.tol) for _, C, sd, z, *_ in looks)
        if self.alarm is None:
            hits = [x for x in looks if x[1] / x[2] < -x[3] and x[1] <= -self.tol]
            if hits and h not in self.announced:
                w, C, sd, _, n, observed = min(hits, key=lambda x: x[1])
                d = -C
                best, onset, total = None, None, 0.0
                for k in range(h, h - 168 - w, -1):
                    if self.hour(k)[0]:
                        total += -self.lack(k, self.hour(k), ref) - self.hour(k)[0] * d / 2
                    elif self.kind == "variants":
                        continue
                    if best is None or total >= best:
                        best, onset = total, k
                self.alarm = dict(since=end, onset=onset, w=w, d=d, n=n, sd=sd, observed=observed)
                self.alarm["evidence"] = self.evidence
                self.events.append(("on", end, dict(self.alarm)))
            return
        d = self.alarm["d"]
        over = self.gone(h)
        for w, C, sd, *_ in looks:
            due = end >= self.alarm["since"] + w * 3_600_000
            over = over or (w >= 24 and due and C - 2 * sd >= -d / 2)
        if over:
            self.out |= set(range(self.alarm["onset"], h + 1))
            self.events.append(("off", end, self.alarm))
            self.alarm = None

    # operator commands

    def accept(self, end):
        h, onset = (end - 1) // 3_600_000, self.alarm["onset"]
        hours = range(max(onset, h - 167), h + 1)
        n = sum(self.hour(k)[0] for k in hours)
        level = fsum(self.lack(k, self.hour(k), self.ref) for k in hours) / n
        steps = round(level * 2**20)
        level = steps / 2**20
        self.ref["m"] = [x + level for x in self.ref["m"]]
        self.ref["mu"] += level
        for k in [k for k in self.hours if k < onset]:
            n_k, V, S, X, Y = self.hours[k]
            moved_v = V + n_k * steps * 2**20
            self.hours[k] = n_k, moved_v, S + 2 * steps * X + steps**2 * Y, X + steps * Y, Y
        self.moved += self.ref["tau2"][24] / (len(hours) / 24) + self.ref["s2"] / n
        self.moved_hour = onset
        self.alarm = None


class Variants(Naive):
    """The first of two variants against the mean of the second in each hour."""

    def __init__(self, tol=0.01, series=20, budget=30):
        super().__init__("variants", tol, series, budget)
        self.second = Naive()

    def close(self, quarter):
        super().close(quarter)
        self.second.close(quarter)

    def hour(self, h):
        none = (0, 0, 0, 0, 0)
        return super().hour(h) if self.second.hours.get(h, none)[0] else none

    def last_week(self, sums, h):
        gone = self.out | self.announced
        last = [sums.hours.get(k, (0,) * 5) for k in range(h - 167, h + 1) if k not in gone]
        return (sum([of[k] for of in last]) for k in range(5))

    def mean(self, sums, h):
        n, V, *_ = self.last_week(sums, h)
        return V / 2**40 / n

    def s2(self, sums, h):
        n, V, S, X, Y = self.last_week(sums, h)
        if n < 100:
            return None
        mu = V / 2**40 / n
        return 1.2 * max(1e-4, (S / 2**40 - 2 * mu * (X / 2**20) + mu * mu * Y) / n)

    def reference(self, h):
        one, two = self.s2(self, h), self.s2(self.second, h)
        if one is None or two is None:
            return None
        floor = 0.3 * self.tol
        return dict(
            s2=one,
            mu=self.mean(self.second, h),
            ratio=two / one,
            beta=dict.fromkeys((1, 6, 24, 168), 0.0),
            tau2=dict.fromkeys((1, 6, 24, 168), floor * floor),
        )

    def lack(self, h, of, ref):
        n, V, *_ = of
        if not n:
            return 0.0
        n2, V2, *_ = self.second.hours[h]
        return V / 2**40 - n / n2 * (V2 / 2**40)

    def chance(self, hours, n, ref):
        of_hours = [(k, self.hour(k)[0]) for k in hours]
        both = [(one, self.second.hours[k][0]) for k, one in of_hours if one]
        return ref["s2"] / n * (1 + fsum(ref["ratio"] * (a / b) * a for a, b in both) / n)

    def observed(self, n, change, sums):
        return change

    def gone(self, h):
        day = range(h - 23, h + 1)
        both = self.hours, self.second.hours
        return any(not any(of.get(k, (0,))[0] for k in day) for of in both)

    def begin(self, h):
        return next((k for k in range(h - 167, h) if self.hour(k)[0]), h) - 1
