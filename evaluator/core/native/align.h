/* Ranked candidates and judgments, spans of pools -> judged lists. Needs order.h. */

/* Of each query. */
struct spans {
    const int64_t *candidate_starts, *n_candidates;
    const int64_t *rank_starts, *n_rankers;
    const int64_t *judged_starts, *n_judged; /* at most n_columns */
};

struct pools {
    const int32_t *candidate_codes;
    const uint16_t *ranks;
    const int32_t *judged_codes;
    const double *judged_grades;
};

/* Columns of a number of each list or query, one after the other; rows of `judged_grades`. */
struct aligned {
    int64_t n_columns;
    int64_t n_lists;
    int64_t *ranks;
    double *grades;
    int64_t *columns;
    double *judged_grades;
    double *ideal_grades;
    int64_t *n_relevant;
};

/* Where a candidate stands first; -1 if it is not there. */
static int64_t find(const int32_t *codes, int64_t n, int32_t code)
{
    for (int64_t i = 0; i < n; i++)
        if (codes[i] == code)
            return i;
    return -1;
}

/* Judged candidates by rank, of equal ranks the first column first, to a column of each list. */
static void put_list(const uint16_t *ranks, const int64_t *positions, const double *grades,
                     int64_t n_judged, int64_t list, const struct aligned *out)
{
    int64_t keys[MOST_COLUMNS]; /* rank, and the column in the lowest bits */
    for (int64_t column = 0; column < n_judged; column++) {
        int64_t rank = positions[column] < 0 ? NEVER_RANKED : ranks[positions[column]];
        int64_t key = rank * MOST_COLUMNS + column, place = column;
        for (; place > 0 && keys[place - 1] > key; place--)
            keys[place] = keys[place - 1];
        keys[place] = key;
    }
    for (int64_t place = 0; place < out->n_columns; place++) {
        bool inside = place < n_judged;
        int64_t column = inside ? keys[place] % MOST_COLUMNS : place;
        int64_t to = place * out->n_lists + list;
        out->ranks[to] = inside ? keys[place] / MOST_COLUMNS : NEVER_RANKED;
        out->columns[to] = column;
        out->grades[to] = inside ? grades[column] : 0;
    }
}

/* Grades of a query, as they stand and descending; 0.0 for -0.0 in the latter. */
static void put_grades(const double *grades, int64_t n_judged, int64_t query, int64_t n_queries,
                       const struct aligned *out)
{
    double sorted[MOST_COLUMNS];
    int64_t n_relevant = 0;
    for (int64_t column = 0; column < n_judged; column++) {
        double grade = grades[column] + 0.0;
        int64_t place = column;
        for (; place > 0 && sorted[place - 1] < grade; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = grade;
        n_relevant += grade > 0;
    }
    out->n_relevant[query] = n_relevant;
    for (int64_t column = 0; column < out->n_columns; column++) {
        bool inside = column < n_judged;
        out->judged_grades[query * out->n_columns + column] = inside ? grades[column] : 0;
        out->ideal_grades[column * n_queries + query] = inside ? sorted[column] : 0;
    }
}

EXPORT void align(const struct spans *spans, int64_t n_queries, const struct pools *pools,
                  const struct aligned *out)
{
    int64_t positions[MOST_COLUMNS], list = 0;
    for (int64_t query = 0; query < n_queries; query++) {
        int64_t n_candidates = spans->n_candidates[query], n_judged = spans->n_judged[query];
        const int32_t *candidates = pools->candidate_codes + spans->candidate_starts[query];
        const int32_t *codes = pools->judged_codes + spans->judged_starts[query];
        const double *grades = pools->judged_grades + spans->judged_starts[query];
        const uint16_t *ranks = pools->ranks + spans->rank_starts[query];
        for (int64_t column = 0; column < n_judged; column++)
            positions[column] = find(candidates, n_candidates, codes[column]);
        put_grades(grades, n_judged, query, n_queries, out);
        for (int64_t i = 0; i < spans->n_rankers[query]; i++, ranks += n_candidates)
            put_list(ranks, positions, grades, n_judged, list++, out);
    }
}
