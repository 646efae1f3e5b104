/* Decodes rankings to columns. Needs json.h. */

struct rankings {
    struct names *candidates;
    struct names *strata;      /* model, variant and scorers by name, each with SEPARATOR */
    struct names *schemas;     /* names of features, each with SEPARATOR; empty: without names */
    struct names *levels;      /* of each segment, each with SEPARATOR; empty: without a level */
    int64_t n_rows, strings_size, n_ids, n_scores, n_ranks, n_features, n_propensities;
    int64_t n_exposed, n_exposures; /* candidates of rows with `exposed`, rows with either member */
    int64_t keeps_features;    /* an input: without it features are only checked */
    int64_t n_segments;        /* an input */
    const byte *segments;      /* an input: names, each with SEPARATOR */
    /* By row: */
    int64_t *timestamps_ms, *candidate_counts;
    int64_t *feature_counts; /* 0: no features */
    int64_t *exposed_tops;   /* -1: without */
    int32_t *stratum_numbers, *schema_numbers;
    int32_t *level_numbers; /* with segments */
    byte *key_hashes;       /* KEY_HASH_BYTES of each row */
    byte *has_ranks, *has_propensities, *has_exposed;
    /* By candidate: */
    int32_t *ids;         /* numbers of the candidate ids */
    double *scores;       /* by row: served, then each scorer by name */
    int64_t *ranks;       /* of the rows that have them */
    double *features;     /* by row, candidate after candidate */
    double *propensities; /* of the rows that have them */
    byte *exposed;        /* 0 or 1, of the rows that have them */
    /* Text: trace_id, node_id, query of each row, then NUL up to a multiple of 8. */
    byte *strings;
};

enum ranking_member {
    TRACE_ID,
    NODE_ID,
    QUERY,
    N_STRINGS,
    MODEL = N_STRINGS,
    VARIANT,
    N_TEXTS,
    SCHEMA_VERSION = N_TEXTS,
    TIMESTAMP_MS,
    CANDIDATE_IDS,
    SCORES,
    RANKS,
    SCORERS,
    FEATURE_NAMES,
    FEATURES,
    SEGMENTS,
    PROPENSITIES,
    EXPOSED,
    EXPOSED_TOP,
    CANDIDATES, /* from here on: refused */
    SUBTOPICS,
    PUBLISHED_MS,
    CANDIDATE_KIND,
    DESCRIPTIONS,
    GRAPHS,
    N_RANKING_MEMBERS,
};

static const struct known_name ranking_names[N_RANKING_MEMBERS] = {
    [TRACE_ID] = NAME("trace_id"),
    [NODE_ID] = NAME("node_id"),
    [MODEL] = NAME("model"),
    [VARIANT] = NAME("variant"),
    [QUERY] = NAME("query"),
    [SCHEMA_VERSION] = NAME("schema_version"),
    [TIMESTAMP_MS] = NAME("timestamp_ms"),
    [CANDIDATE_IDS] = NAME("candidate_ids"),
    [SCORES] = NAME("scores"),
    [RANKS] = NAME("ranks"),
    [SCORERS] = NAME("scorers"),
    [FEATURE_NAMES] = NAME("feature_names"),
    [FEATURES] = NAME("features"),
    [SEGMENTS] = NAME("segments"),
    [PROPENSITIES] = NAME("propensities"),
    [EXPOSED] = NAME("exposed"),
    [EXPOSED_TOP] = NAME("exposed_top"),
    [CANDIDATES] = NAME("candidates"),
    [SUBTOPICS] = NAME("subtopics"),
    [PUBLISHED_MS] = NAME("published_ms"),
    [CANDIDATE_KIND] = NAME("candidate_kind"),
    [DESCRIPTIONS] = NAME("descriptions"),
    [GRAPHS] = NAME("graphs"),
};

struct scorer {
    const byte *name;
    int64_t name_size, n_scores;
    const double *scores;
};

struct ranking {
    struct rankings *out;
    const byte *end;                /* of the text */
    const byte *strings[N_TEXTS];   /* positions in the text; NULL: missing */
    uint32_t seen;                  /* members, null ones included */
    uint32_t given;                 /* members that are not null */
    int64_t timestamp_ms, n_candidates, n_scores, n_ranks, n_scorers;
    int64_t n_feature_names, n_feature_rows, n_features, n_propensities, schema_size;
    int64_t n_exposed, exposed_top;
    const byte *levels[MAX_SEGMENTS];       /* likewise */
    struct scorer scorers[MAX_SCORERS];
    double scores[(1 + MAX_SCORERS) * MAX_CANDIDATES]; /* served, then in message order */
};

static bool has(const struct ranking *row, enum ranking_member member)
{
    return row->given >> member & 1;
}

static const byte *read_candidate_ids(struct ranking *row, const byte *at)
{
    struct rankings *out = row->out;
    bool repeated; /* ids of a ranking may repeat */
    if (*at++ != '[')
        return NULL;
    while (next_item(&at, ']', &row->n_candidates)) {
        int32_t *id = out->ids + out->n_ids + row->n_candidates - 1;
        if (row->n_candidates > MAX_CANDIDATES ||
            !(at = read_numbered(at, row->end, out->candidates, id, &repeated)))
            return NULL;
    }
    return at;
}

static const byte *read_ranks(struct ranking *row, const byte *at)
{
    struct rankings *out = row->out;
    if (*at++ != '[')
        return NULL;
    while (next_item(&at, ']', &row->n_ranks))
        if (row->n_ranks > MAX_CANDIDATES ||
            !(at = read_integer(at, 1, out->ranks + out->n_ranks + row->n_ranks - 1)))
            return NULL;
    return at;
}

static bool is_reserved(const byte *name, int64_t size)
{
    static const struct known_name reserved[] = {NAME("served"), NAME("champion"),
                                                 NAME("challenger"), NAME("weights")};
    return find_name(reserved, 4, name, size) >= 0;
}

static const byte *read_scorer(void *into, const byte *name, int64_t size, const byte *at)
{
    struct ranking *row = into;
    struct scorer *scorer = row->scorers + row->n_scorers;
    if (row->n_scorers == MAX_SCORERS || size == 0 || size > MAX_NAME_BYTES ||
        is_reserved(name, size) || is_null(at))
        return NULL;
    for (int i = 0; i < row->n_scorers; i++)
        if (row->scorers[i].name_size == size && memcmp(row->scorers[i].name, name, size) == 0)
            return NULL;
    double *to = row->scores + ++row->n_scorers * MAX_CANDIDATES;
    *scorer = (struct scorer){name, size, 0, to};
    return read_numbers(at, row->end, to, MAX_CANDIDATES, &scorer->n_scores);
}

static const byte *read_feature_names(struct ranking *row, const byte *at)
{
    byte *start = row->out->schemas->text + row->out->schemas->size, *to = start;
    if (*at++ != '[')
        return NULL;
    while (next_item(&at, ']', &row->n_feature_names)) {
        if (row->n_feature_names > MAX_FEATURES)
            return NULL;
        if (!(at = read_text(at, &to, 0, MAX_NAME_BYTES)))
            return NULL;
    }
    row->schema_size = to - start;
    return at;
}

/* Reads rows of numbers of one length. */
static const byte *read_features(struct ranking *row, const byte *at)
{
    double *to = row->out->keeps_features ? row->out->features + row->out->n_features : NULL;
    int64_t n;
    if (*at++ != '[')
        return NULL;
    while (next_item(&at, ']', &row->n_feature_rows)) {
        if (row->n_feature_rows > MAX_CANDIDATES ||
            !(at = read_numbers(at, row->end, to, MAX_FEATURES, &n)))
            return NULL;
        if (row->n_feature_rows == 1)
            row->n_features = n;
        else if (n != row->n_features)
            return NULL;
        to = to ? to + n : NULL;
    }
    return at;
}

/* Reads probabilities above 0. */
static const byte *read_propensities(struct ranking *row, const byte *at)
{
    double *to = row->out->propensities + row->out->n_propensities;
    if (*at++ != '[')
        return NULL;
    for (; next_item(&at, ']', &row->n_propensities); to++)
        if (row->n_propensities > MAX_CANDIDATES || !(at = read_number(at, to)) || *to <= 0 ||
            *to > 1)
            return NULL;
    return at;
}

static const byte *read_exposed(struct ranking *row, const byte *at)
{
    byte *to = row->out->exposed + row->out->n_exposed;
    if (*at++ != '[')
        return NULL;
    for (; next_item(&at, ']', &row->n_exposed); to++) {
        *to = *at == 't';
        if (row->n_exposed > MAX_CANDIDATES || !(at = skip_word(at, *to ? "true" : "false")))
            return NULL;
    }
    return at;
}

/* The last level of a repeated segment counts. */
static const byte *read_segment(void *into, const byte *name, int64_t size, const byte *at)
{
    struct ranking *row = into;
    if (size > MAX_NAME_BYTES)
        return NULL;
    const byte *known = row->out->segments;
    for (int64_t i = 0; i < row->out->n_segments; i++, known++) {
        const byte *start = known;
        while (*known != SEPARATOR)
            known++;
        if (known - start == size && is_same(start, name, size))
            row->levels[i] = is_null(at) ? NULL : at;
    }
    return is_null(at) ? skip_word(at, "null") : skip_name(at);
}

static const byte *read_ranking_member(void *into, const byte *name, int64_t size, const byte *at)
{
    struct ranking *row = into;
    int member = find_name(ranking_names, N_RANKING_MEMBERS, name, size);
    if (member < 0)
        return skip_value(at, 1);
    if (row->seen >> member & 1)
        return NULL; /* the reference path takes the last one of a repeated member */
    row->seen |= (uint32_t)1 << member;
    if (is_null(at))
        return skip_word(at, "null");
    row->given |= (uint32_t)1 << member;
    switch (member) {
    case TRACE_ID:
    case NODE_ID:
    case MODEL:
    case VARIANT:
    case QUERY:
        row->strings[member] = at;
        return skip_string(at);
    case SCHEMA_VERSION:
        return *at == '1' ? at + 1 : NULL;
    case TIMESTAMP_MS:
        return read_integer(at, 0, &row->timestamp_ms);
    case CANDIDATE_IDS:
        return read_candidate_ids(row, at);
    case SCORES:
        return read_numbers(at, row->end, row->scores, MAX_CANDIDATES, &row->n_scores);
    case RANKS:
        return read_ranks(row, at);
    case SCORERS:
        return scan_object(at, read_scorer, row);
    case FEATURE_NAMES:
        return read_feature_names(row, at);
    case FEATURES:
        return read_features(row, at);
    case SEGMENTS:
        return scan_object(at, read_segment, row);
    case PROPENSITIES:
        return read_propensities(row, at);
    case EXPOSED:
        return read_exposed(row, at);
    case EXPOSED_TOP:
        return read_integer(at, 0, &row->exposed_top);
    default:
        return NULL;
    }
}

static bool is_whole(const struct ranking *row)
{
    const uint32_t required = 1u << SCHEMA_VERSION | 1u << TRACE_ID | 1u << NODE_ID |
                              1u << CANDIDATE_IDS;
    int64_t n = row->n_candidates;
    if ((row->given & required) != required || !(has(row, SCORES) || has(row, RANKS)) ||
        (has(row, SCORES) && row->n_scores != n) || (has(row, RANKS) && row->n_ranks != n) ||
        (has(row, FEATURES) && row->n_feature_rows != n) ||
        (has(row, PROPENSITIES) && row->n_propensities != n) ||
        (has(row, EXPOSED) && (row->n_exposed != n || has(row, EXPOSED_TOP))) ||
        (row->n_feature_rows && has(row, FEATURE_NAMES) && row->n_feature_names != row->n_features))
        return false;
    for (int i = 0; i < row->n_scorers; i++)
        if (row->scorers[i].n_scores != n)
            return false;
    return true;
}

static int compare_names(const struct scorer *a, const struct scorer *b)
{
    int order = memcmp(a->name, b->name, a->name_size < b->name_size ? a->name_size : b->name_size);
    return order ? order : a->name_size < b->name_size ? -1 : 1;
}

static void sort_scorers(struct ranking *row)
{
    for (int i = 1; i < row->n_scorers; i++) {
        struct scorer scorer = row->scorers[i];
        int place = i;
        for (; place > 0 && compare_names(&scorer, row->scorers + place - 1) < 0; place--)
            row->scorers[place] = row->scorers[place - 1];
        row->scorers[place] = scorer;
    }
}

static bool put_stratum(struct ranking *row)
{
    struct rankings *out = row->out;
    struct names *strata = out->strata;
    byte *text = strata->text + strata->size, *to = text;
    bool repeated;
    for (int i = MODEL; i < N_TEXTS; i++)
        if (!row->strings[i])
            *to++ = SEPARATOR;
        else if (!read_text(row->strings[i], &to, 0, MAX_NAME_BYTES))
            return false;
    for (int i = 0; i < row->n_scorers; i++) {
        memcpy(to, row->scorers[i].name, row->scorers[i].name_size);
        to += row->scorers[i].name_size;
        *to++ = SEPARATOR;
    }
    out->stratum_numbers[out->n_rows] = number_of(strata, text, to - text, &repeated);
    return true;
}

static bool put_levels(struct ranking *row)
{
    struct names *levels = row->out->levels;
    byte *text = levels->text + levels->size, *to = text;
    bool repeated;
    for (int64_t i = 0; i < row->out->n_segments; i++)
        if (!row->levels[i])
            *to++ = SEPARATOR;
        else if (!read_text(row->levels[i], &to, 0, MAX_NAME_BYTES))
            return false;
    row->out->level_numbers[row->out->n_rows] = number_of(levels, text, to - text, &repeated);
    return true;
}

/* Without candidates, the number of features is that of their names. */
static void put_features(struct ranking *row)
{
    struct rankings *out = row->out;
    int64_t n = 0;
    if (has(row, FEATURES))
        n = row->n_feature_rows ? row->n_features : row->n_feature_names;
    struct names *schemas = out->schemas;
    bool repeated;
    out->feature_counts[out->n_rows] = n;
    out->schema_numbers[out->n_rows] =
        number_of(schemas, schemas->text + schemas->size, row->schema_size, &repeated);
    out->n_features += row->n_feature_rows * n;
}

static void put_served(struct ranking *row)
{
    struct rankings *out = row->out;
    out->has_propensities[out->n_rows] = has(row, PROPENSITIES);
    out->has_exposed[out->n_rows] = has(row, EXPOSED);
    out->exposed_tops[out->n_rows] = has(row, EXPOSED_TOP) ? row->exposed_top : -1;
    out->n_propensities += row->n_propensities;
    out->n_exposed += row->n_exposed;
    out->n_exposures += has(row, EXPOSED) || has(row, EXPOSED_TOP);
}

static void put_scores(struct ranking *row)
{
    struct rankings *out = row->out;
    int64_t n = row->n_candidates;
    double *to = out->scores + out->n_scores;
    if (has(row, SCORES))
        memcpy(to, row->scores, n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = double_of_bits(0x7ff8000000000000);
    for (int i = 0; i < row->n_scorers; i++)
        memcpy(to += n, row->scorers[i].scores, n * sizeof *to);
    out->n_scores += n * (1 + row->n_scorers);
}

/* Message i is text[starts[i]] to before text[ends[i]], which is NUL. */
EXPORT void decode_rankings(const byte *text, const int64_t *starts, const int64_t *ends,
                            int64_t first, int64_t last, struct rankings *out)
{
    struct ranking row;
    for (int64_t i = first; i < last; i++) {
        memset(&row, 0, offsetof(struct ranking, scores));
        row.out = out;
        row.end = text + ends[i];
        row.timestamp_ms = NO_TIMESTAMP;
        out->candidates->row++;
        if (!scan_message(text + starts[i], text + ends[i], read_ranking_member, &row) ||
            !is_whole(&row))
            return;
        const byte *texts = out->strings + out->strings_size;
        sort_scorers(&row);
        if (!put_stratum(&row) || (out->n_segments && !put_levels(&row)) ||
            !put_texts(row.strings, N_STRINGS, MAX_MESSAGE_BYTES, out->strings, &out->strings_size))
            return;
        while (out->strings_size % 8)
            out->strings[out->strings_size++] = 0;
        put_key_hash(texts, out->key_hashes + out->n_rows * KEY_HASH_BYTES);
        put_scores(&row);
        out->timestamps_ms[out->n_rows] = row.timestamp_ms;
        out->candidate_counts[out->n_rows] = row.n_candidates;
        out->has_ranks[out->n_rows] = has(&row, RANKS);
        if (out->keeps_features)
            put_features(&row);
        put_served(&row);
        out->n_ids += row.n_candidates;
        out->n_ranks += row.n_ranks;
        out->n_rows++;
    }
}
