/* The order of LANES lists by number. Needs basics.h. */

static bool is_finite(double number)
{
    return number - number == 0;
}

/* Ranks by comparing every number with all the others, rounded to floats: rounding keeps the order,
   but may make two numbers one. False if it did, or if some were equal before: then the ranks of a
   list add up to less. */
static bool rank_rounded(int64_t width, const union column *columns, union rank_column *ranks)
{
    union rounded_column rounded[MOST_COLUMNS];
    for (int64_t column = 0; column < width; column++)
        for (int lane = 0; lane < LANES; lane++)
            rounded[column].number[lane] = (float)columns[column].number[lane];
    for (int64_t column = width; column % AT_ONCE; column++)
        rounded[column] = rounded[0]; /* whose rank nobody asks */
    for (int part = 0; part < QUARTERS; part++)
        for (int64_t column = 0; column < width; column += AT_ONCE) {
            ints found[AT_ONCE] = {{0}};
            for (int64_t other = 0; other < width; other++)
                for (int i = 0; i < AT_ONCE; i++)
                    found[i] -= rounded[other].numbers[part] > rounded[column + i].numbers[part];
            for (int i = 0; i < AT_ONCE; i++)
                ranks[column + i].integers[part] = found[i];
        }
    ints wrong = {0};
    for (int part = 0; part < QUARTERS; part++) {
        ints sum = {0};
        for (int64_t column = 0; column < width; column++)
            sum += ranks[column].integers[part];
        wrong |= sum != (int32_t)(width * (width - 1) / 2);
    }
    return !(wrong[0] | wrong[1] | wrong[2] | wrong[3]);
}

/* Ranks by looking at each pair once: the later column goes first if its number is at least as high,
   which no NAN is. */
static void rank_exactly(int64_t width, const union column *columns, union rank_column *ranks)
{
    doubles numbers[MOST_COLUMNS], lowest[MOST_COLUMNS];
    longs found[MOST_COLUMNS];
    for (int part = 0; part < HALVES; part++) {
        for (int64_t column = 0; column < width; column++)
            for (int lane = 0; lane < 2; lane++) {
                double number = columns[column].number[part * 2 + lane];
                numbers[column][lane] = is_finite(number) ? number : NAN;
                lowest[column][lane] = is_finite(number) ? number : -INFINITY;
            }
        for (int64_t later = 0; later < width; later++) {
            doubles own = numbers[later];
            longs rank = {later, later};
            for (int64_t column = 0; column < later; column++) {
                longs goes_first = own >= lowest[column];
                found[column] -= goes_first;
                rank += goes_first;
            }
            found[later] = rank;
        }
        for (int64_t column = 0; column < width; column++)
            for (int lane = 0; lane < 2; lane++)
                ranks[column].integer[part * 2 + lane] = (int32_t)found[column][lane];
    }
}

/* Ranks from 0: by number descending, of equal ones the last column first; what is not finite comes
   after that, first column first. */
static void rank(int64_t width, const union column *columns, bool all_finite,
                 union rank_column *ranks)
{
    if (!all_finite || !rank_rounded(width, columns, ranks))
        rank_exactly(width, columns, ranks);
}

static shorts higher(shorts a, shorts b)
{
#ifdef __SSE2__
    return (shorts)_mm_max_epi16((__m128i)a, (__m128i)b);
#else
    shorts first = a > b;
    return (a & first) | (b & ~first);
#endif
}

static shorts lower(shorts a, shorts b)
{
#ifdef __SSE2__
    return (shorts)_mm_min_epi16((__m128i)a, (__m128i)b);
#else
    shorts first = a < b;
    return (a & first) | (b & ~first);
#endif
}

/* Numbers of few digits, as grades mostly are, in descending order: all of such a number is in its
   first 16 bits. False if there are others. */
static bool sort_short(int64_t width, union column *columns)
{
    union short_column sorted[MOST_COLUMNS];
    longs all = {0};
    for (int64_t column = 0; column < width; column++)
        for (int part = 0; part < HALVES; part++)
            all |= columns[column].integers[part];
    if (((all[0] | all[1]) & 0xffffffffffff) != 0)
        return false;
    for (int64_t column = 0; column < width; column++)
        for (int lane = 0; lane < LANES; lane++)
            sorted[column].integer[lane] = (int16_t)(columns[column].integer[lane] >> 48);
    for (int64_t next = 1; next < width; next++) {
        shorts moved = sorted[next].integers;
        for (int64_t column = 0; column < next; column++) {
            shorts here = sorted[column].integers;
            sorted[column].integers = higher(here, moved);
            moved = lower(here, moved);
        }
        sorted[next].integers = moved;
    }
    for (int64_t column = 0; column < width; column++)
        for (int lane = 0; lane < LANES; lane++)
            columns[column].integer[lane] = (int64_t)sorted[column].integer[lane] << 48;
    return true;
}

/* Finite numbers that are not negative in descending order, 0.0 for -0.0. */
static void sort_descending(int64_t width, union column *columns)
{
    union column unsorted[MOST_COLUMNS];
    union rank_column ranks[MOST_COLUMNS];
    for (int64_t column = 0; column < width; column++)
        for (int part = 0; part < HALVES; part++)
            columns[column].numbers[part] += 0.0;
    if (sort_short(width, columns))
        return;
    memcpy(unsorted, columns, width * sizeof *unsorted);
    rank(width, unsorted, true, ranks);
    for (int64_t column = 0; column < width; column++)
        for (int lane = 0; lane < LANES; lane++)
            columns[ranks[column].integer[lane]].number[lane] = unsorted[column].number[lane];
}
