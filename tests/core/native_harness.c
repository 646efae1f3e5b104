/* Judges, aligns and merges batches of all widths from arrays of exactly the size that is promised,
   each in memory of its own, so that a sanitizer sees every byte too far. */

#include "../../evaluator/core/native/native.c"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 20261122;

static int64_t drawn(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % n;
}

static void *array(int64_t n_items)
{
    void *items = malloc(n_items * 8);
    if (!items)
        abort();
    return items;
}

/* Numbers that are tied and missing here and there, some of them not of few digits. */
static double *numbers(int64_t n)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, -1, -0.0, 0.1, 1e300};
    int64_t n_odd = drawn(3) * drawn(40);
    double *made = array(n);
    for (int64_t i = 0; i < n; i++)
        made[i] = drawn(100) < n_odd ? odd[drawn(7)] : (double)drawn(100) / 4;
    return made;
}

static void judge(int64_t n, int64_t width)
{
    double *scores = numbers(n * width), *grades = numbers(n * width);
    uint8_t *tied = malloc(n);
    struct shape shape;
    find_shape(scores, grades, n, width, &shape);
    find_ties(scores, n, width, tied);
    int64_t *decided = array(n), *positions = array(n * width), n_decided = 0;
    for (int64_t row = 0; row < n; row++)
        if (tied[row]) {
            for (int64_t column = 0; column < width; column++)
                positions[n_decided * width + column] = width - 1 - column;
            decided[n_decided++] = row;
        }
    int64_t cells = shape.n_columns * n;
    struct judged_lists lists = {n_decided,    decided,      positions,    array(n),
                                 array(n),     array(cells), array(cells), array(cells),
                                 array(cells), array(n * width)};
    judge_lists(scores, grades, n, width, &shape, &lists);
    free(scores), free(grades), free(tied), free(decided), free(positions);
    free(lists.n_ranked), free(lists.n_relevant), free(lists.ranks), free(lists.grades);
    free(lists.columns), free(lists.ideal_grades), free(lists.judged_grades);
}

/* Lengths of spans, up to `most`; where each starts; how much all of them take. */
static int64_t spans_of(int64_t n, int64_t least, int64_t most, int64_t *starts, int64_t *lengths)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++, total += lengths[i - 1]) {
        starts[i] = total;
        lengths[i] = least + drawn(most - least + 1);
    }
    return total;
}

/* Codes, of which no span has one twice. */
static int32_t *codes_of(int64_t n, const int64_t *lengths, int64_t total)
{
    int32_t *codes = malloc(total * sizeof *codes), *at = codes;
    for (int64_t i = 0; i < n; i++)
        for (int64_t code = drawn(9), left = lengths[i]; left--; code += 1 + drawn(3))
            *at++ = (int32_t)code;
    return codes;
}

static void align_some(int64_t n, int64_t width)
{
    int64_t *of[6], n_lists = 0, n_ranks = 0;
    for (int i = 0; i < 6; i++)
        of[i] = array(n);
    int64_t n_candidates = spans_of(n, 0, 30, of[0], of[1]);
    int64_t n_judged = spans_of(n, 1, width, of[4], of[5]);
    for (int64_t i = 0; i < n; i++) {
        of[2][i] = n_ranks, of[3][i] = drawn(4);
        n_lists += of[3][i], n_ranks += of[3][i] * of[1][i];
    }
    uint16_t *ranks = malloc(n_ranks * sizeof *ranks);
    for (int64_t i = 0; i < n_ranks; i++)
        ranks[i] = (uint16_t)(1 + drawn(30));
    int32_t *candidates = codes_of(n, of[1], n_candidates), *codes = codes_of(n, of[5], n_judged);
    double *grades = numbers(n_judged);
    struct spans spans = {of[0], of[1], of[2], of[3], of[4], of[5]};
    struct pools pools = {candidates, ranks, codes, grades};
    struct aligned out = {width, n_lists, array(width * n_lists), array(width * n_lists),
                          array(width * n_lists), array(width * n), array(width * n), array(n)};
    align(&spans, n, &pools, &out);
    free(ranks), free(candidates), free(codes), free(grades);
    free(out.ranks), free(out.grades), free(out.columns), free(out.judged_grades);
    free(out.ideal_grades), free(out.n_relevant);
    for (int i = 0; i < 6; i++)
        free(of[i]);
}

static void merge_some(int64_t n, int64_t width)
{
    int64_t *of[6];
    for (int i = 0; i < 6; i++)
        of[i] = array(n);
    int64_t n_judged = spans_of(n, 0, width, of[0], of[1]);
    int64_t n_judgments = spans_of(n, 1, 5, of[2], of[3]);
    int64_t n_given = spans_of(n, 0, width, of[4], of[5]), room = n_judged + n_given;
    int32_t *codes = codes_of(n, of[1], n_judged), *given = codes_of(n, of[5], n_given);
    double *grades = numbers(n_judged), *given_grades = numbers(n_given);
    uint16_t *by = malloc(n_judged * sizeof *by);
    for (int64_t query = 0; query < n; query++)
        for (int64_t i = 0; i < of[1][query]; i++)
            by[of[0][query] + i] = (uint16_t)drawn(of[3][query]);
    int64_t *times = array(n_judgments), *offsets = array(n_judgments);
    for (int64_t i = 0; i < n_judgments; i++)
        times[i] = drawn(3), offsets[i] = drawn(9);
    int64_t *new_times = array(n), *new_offsets = array(n), *longer = array(n_judgments + n);
    for (int64_t i = 0; i < n; i++)
        new_times[i] = drawn(3), new_offsets[i] = drawn(9);
    struct judged judged = {of[0], of[1], codes, grades, by};
    struct judgments judgments = {of[2], of[3], times, offsets};
    struct further further = {of[5], given, given_grades, new_times, new_offsets};
    struct merged out = {array(n), malloc(room * sizeof *codes), array(room),
                         malloc(room * sizeof *by)};
    merge(n, &judged, &judgments, &further, &out);
    append_one(n, of[2], of[3], sizeof *times, (unsigned char *)times, (unsigned char *)new_times,
               (unsigned char *)longer);
    free(codes), free(given), free(grades), free(given_grades), free(by), free(times);
    free(offsets), free(new_times), free(new_offsets), free(longer);
    free(out.n), free(out.codes), free(out.grades), free(out.by);
    for (int i = 0; i < 6; i++)
        free(of[i]);
}

/* Hashes that fall into few parts, and often into the same places of them, put in and taken out. */
static void index_some(int64_t n_turns, int64_t n_hashes)
{
    struct index *index = index_new();
    uint64_t *hashes = array(n_hashes);
    int64_t *numbers = array(n_hashes);
    for (int64_t turn = 0; turn < n_turns; turn++) {
        int64_t n = drawn(n_hashes + 1);
        for (int64_t i = 0; i < n; i++) {
            hashes[i] = (uint64_t)drawn(2) << 63 | (uint64_t)drawn(n_hashes * 3) << (20 + drawn(20));
            numbers[i] = 1 + drawn(9);
        }
        if (!index_put(index, n, hashes, numbers))
            abort();
        index_remove(index, drawn(n + 1), hashes);
        index_find(index, n, hashes, numbers);
    }
    free(hashes), free(numbers);
    index_free(index);
}

int main(void)
{
    int64_t n_batches = 0;
    for (int64_t n = 1; n <= 100; n++, n_batches++)
        index_some(20, n * 7);
    for (int64_t width = 1; width <= MOST_COLUMNS; width++)
        for (int64_t n = 1; n <= 20; n++, n_batches++) {
            judge(n, width);
            align_some(n, width);
            merge_some(n, width);
        }
    printf("%lld batches\n", (long long)n_batches);
    return 0;
}
