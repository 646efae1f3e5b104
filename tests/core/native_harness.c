/* Judges batches of all widths from arrays of exactly the size that is promised, each in memory of
   its own, so that a sanitizer sees every byte too far. */

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

int main(void)
{
    int64_t n_batches = 0;
    for (int64_t width = 1; width <= MOST_COLUMNS; width++)
        for (int64_t n = 1; n <= 20; n++, n_batches++)
            judge(n, width);
    printf("%lld batches\n", (long long)n_batches);
    return 0;
}
