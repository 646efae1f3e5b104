/* One more judgment of each query, merged with what stands: core/join/judgments.py says how. */

/* What is judged of queries: spans of `n` candidates from `starts` on. */
struct judged {
    const int64_t *starts, *n;
    const int32_t *codes;
    const double *grades;
    const uint16_t *by; /* numbers of the judgments that the grades are from */
};

/* The judgments of each query so far: spans of `n` from `starts` on. */
struct judgments {
    const int64_t *starts, *n;
    const int64_t *timestamps_ms, *offsets;
};

/* The judgments that are merged, one of each query. */
struct further {
    const int64_t *n;
    const int32_t *codes;
    const double *grades;
    const int64_t *timestamps_ms, *offsets;
};

/* What is judged then, one query after the other: room for all that stands and all that is new. */
struct merged {
    int64_t *n;
    int32_t *codes;
    double *grades;
    uint16_t *by;
};

EXPORT void merge(int64_t n_queries, const struct judged *judged, const struct judgments *judgments,
                  const struct further *further, const struct merged *out)
{
    int64_t at = 0, given = 0;
    for (int64_t query = 0; query < n_queries; query++) {
        int64_t first = judged->starts[query], n = judged->n[query], n_standing = n;
        int64_t applied = judgments->starts[query];
        int32_t *codes = out->codes + at;
        memcpy(codes, judged->codes + first, n * sizeof *codes);
        memcpy(out->grades + at, judged->grades + first, n * sizeof *out->grades);
        memcpy(out->by + at, judged->by + first, n * sizeof *out->by);
        for (int64_t end = given + further->n[query]; given < end; given++) {
            int64_t place = find(codes, n_standing, further->codes[given]);
            if (place < 0) {
                place = n++;
            } else {
                int64_t standing = applied + out->by[at + place];
                int64_t ms = judgments->timestamps_ms[standing], new_ms = further->timestamps_ms[query];
                if (ms > new_ms ||
                    (ms == new_ms && judgments->offsets[standing] >= further->offsets[query]))
                    continue;
            }
            codes[place] = further->codes[given];
            out->grades[at + place] = further->grades[given];
            out->by[at + place] = (uint16_t)judgments->n[query];
        }
        out->n[query] = n;
        at += n;
    }
}

/* Items of `size` bytes: of each span of `n` items from `starts` on a copy, and `added` behind it. */
EXPORT void append_one(int64_t n_spans, const int64_t *starts, const int64_t *n, int64_t size,
                       const unsigned char *from, const unsigned char *added, unsigned char *to)
{
    for (int64_t i = 0; i < n_spans; i++, added += size) {
        memcpy(to, from + starts[i] * size, n[i] * size);
        to += n[i] * size;
        memcpy(to, added, size);
        to += size;
    }
}
