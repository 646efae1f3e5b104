/* Judged lists. Needs order.h. */

struct judged_lists {
    /* Given: the order of lists with ties that are decided elsewhere. */
    int64_t n_decided;
    const int64_t *decided;   /* numbers of the lists, ascending */
    const int64_t *positions; /* of all their columns, best first, list after list */
    /* Found: a number of each list; below, columns of a number of each list, one after the other. */
    int64_t *n_ranked;
    int64_t *n_relevant;
    int64_t *ranks; /* left out where the lists are whole */
    double *grades;
    int64_t *columns;
    double *ideal_grades;
    double *judged_grades; /* the grades as they were given, with 0 for what is not judged */
};

struct shape {
    int64_t n_columns; /* judged candidates of the list that has most */
    int64_t whole;     /* whether every candidate is ranked and judged */
};

struct block {
    union column scores[MOST_COLUMNS], grades[MOST_COLUMNS], n_ranked;
    union rank_column ranks[MOST_COLUMNS];
    /* Best ranked first, then judged ones alone; one more for what is written and left out. */
    union column ordered[MOST_COLUMNS + 1], positions[MOST_COLUMNS + 1];
    union column judged_ranks[MOST_COLUMNS + 1];
};

/* Rows of `n` lists, column by column; where there are fewer than LANES, the last one again. */
static void load(const double *from, int64_t n, int64_t width, union column *to)
{
    for (int64_t lane = 0; lane < LANES; lane++) {
        const double *row = from + (lane < n ? lane : n - 1) * width;
        for (int64_t column = 0; column < width; column++)
            to[column].number[lane] = row[column];
    }
}

/* Columns of `n` lists to where all `n_lists` have theirs. */
static void store(const union column *columns, int64_t n_columns, int64_t n, int64_t n_lists,
                  void *to)
{
    double *numbers = to;
    for (int64_t column = 0; column < n_columns; column++, numbers += n_lists) {
        if (n < LANES)
            memcpy(numbers, columns + column, n * sizeof *numbers);
        else
            for (int part = 0; part < HALVES; part++)
                memcpy(numbers + part * 2, columns[column].numbers + part, sizeof(doubles));
    }
}

/* Whether all of them are. */
static bool count_ranked(int64_t width, struct block *block)
{
    longs fewer = {0};
    for (int part = 0; part < HALVES; part++) {
        longs n_ranked = {0};
        for (int64_t column = 0; column < width; column++) {
            doubles score = block->scores[column].numbers[part];
            n_ranked -= score - score == 0; /* finite */
        }
        block->n_ranked.integers[part] = n_ranked;
        fewer |= n_ranked != width;
    }
    return !(fewer[0] | fewer[1]);
}

/* The order by rank instead of by column. */
static void put_in_order(int64_t width, struct block *block)
{
    for (int64_t column = 0; column < width; column++)
        for (int lane = 0; lane < LANES; lane++) {
            int64_t rank = block->ranks[column].integer[lane];
            block->ordered[rank].number[lane] = block->grades[column].number[lane];
            block->positions[rank].integer[lane] = column;
        }
}

static void decide(const int64_t *positions, int64_t width, int64_t lane, struct block *block)
{
    for (int64_t rank = 0; rank < width; rank++) {
        block->positions[rank].integer[lane] = positions[rank];
        block->ordered[rank].number[lane] = block->grades[positions[rank]].number[lane];
    }
}

/* The judged candidates moved together to the first columns, up to `n_columns`. */
static void keep_judged(int64_t width, int64_t n_columns, struct block *block)
{
    for (int lane = 0; lane < LANES; lane++) {
        int64_t place = 0, n_ranked = block->n_ranked.integer[lane];
        for (int64_t rank = 0; rank < width; rank++) {
            double grade = block->ordered[rank].number[lane];
            block->ordered[place].number[lane] = grade;
            block->positions[place].integer[lane] = block->positions[rank].integer[lane];
            block->judged_ranks[place].integer[lane] = rank < n_ranked ? rank + 1 : NEVER_RANKED;
            place += grade >= 0;
        }
        for (; place < n_columns; place++) {
            block->ordered[place].number[lane] = 0;
            block->positions[place].integer[lane] = 0;
            block->judged_ranks[place].integer[lane] = NEVER_RANKED;
        }
    }
}

static void count_relevant(int64_t n_columns, const union column *grades, union column *n_relevant)
{
    for (int part = 0; part < HALVES; part++) {
        n_relevant->integers[part] = (longs){0};
        for (int64_t column = 0; column < n_columns; column++)
            n_relevant->integers[part] -= grades[column].numbers[part] > 0;
    }
}

EXPORT void find_shape(const double *scores, const double *grades, int64_t n, int64_t width,
                       struct shape *shape)
{
    int64_t most = 0, n_ranked = 0, n_judged = 0;
    for (int64_t row = 0; row < n; row++) {
        int64_t here = 0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            here += grades[i] >= 0;
            n_ranked += is_finite(scores[i]);
        }
        n_judged += here;
        most = here > most ? here : most;
    }
    shape->n_columns = most;
    shape->whole = n_ranked == n * width && n_judged == n * width;
}

/* Which of `n` lists have equal scores. */
EXPORT void find_ties(const double *scores, int64_t n, int64_t width, uint8_t *tied)
{
    for (int64_t row = 0; row < n; row++, scores += width) {
        bool equal = false;
        for (int64_t later = 1; later < width; later++)
            for (int64_t column = 0; column < later; column++)
                equal |= scores[later] == scores[column] && is_finite(scores[later]);
        tied[row] = equal;
    }
}

EXPORT void judge_lists(const double *scores, const double *grades, int64_t n, int64_t width,
                        const struct shape *shape, const struct judged_lists *lists)
{
    struct block block;
    union column n_relevant;
    const int64_t *decided = lists->decided, *end = decided + lists->n_decided;
    const int64_t *positions = lists->positions;
    for (int64_t first = 0; first < n; first += LANES) {
        int64_t here = n - first < LANES ? n - first : LANES, n_columns = shape->n_columns;
        load(scores + first * width, here, width, block.scores);
        load(grades + first * width, here, width, block.grades);
        bool all_ranked = count_ranked(width, &block);
        rank(width, block.scores, all_ranked, block.ranks);
        put_in_order(width, &block);
        for (; decided < end && *decided < first + here; decided++, positions += width)
            decide(positions, width, *decided - first, &block);
        if (!shape->whole) {
            keep_judged(width, n_columns, &block);
            store(block.judged_ranks, n_columns, here, n, lists->ranks + first);
        }
        count_relevant(n_columns, block.ordered, &n_relevant);
        store(&block.n_ranked, 1, here, n, lists->n_ranked + first);
        store(&n_relevant, 1, here, n, lists->n_relevant + first);
        store(block.positions, n_columns, here, n, lists->columns + first);
        store(block.ordered, n_columns, here, n, lists->grades + first);
        sort_descending(n_columns, block.ordered);
        store(block.ordered, n_columns, here, n, lists->ideal_grades + first);
    }
    if (!shape->whole)
        for (int64_t i = 0; i < n * width; i++)
            lists->judged_grades[i] = grades[i] >= 0 ? grades[i] : 0;
}
