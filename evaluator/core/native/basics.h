/* What every part needs.

   Lists are handled LANES at a time, a column of all of them together, by vectors of 16 bytes, which
   every processor has. A comparison of vectors gives -1 for true, so counts are subtracted. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define VECTOR __attribute__((vector_size(16)))

enum {
    LANES = 8,
    HALVES = LANES / 2,  /* vectors of numbers of 8 bytes in a column */
    QUARTERS = LANES / 4 /* ... of 4 bytes */
};

enum {
    MOST_COLUMNS = 64, /* of a list: what is compared grows with the square of it */
    AT_ONCE = 4,       /* columns whose ranks are counted beside each other; divides it */
    NEVER_RANKED = 1 << 20
};

typedef double doubles VECTOR;
typedef int64_t longs VECTOR;
typedef float floats VECTOR;
typedef int32_t ints VECTOR;
typedef int16_t shorts VECTOR;

/* A number of each list. */
union column {
    double number[LANES];
    int64_t integer[LANES];
    doubles numbers[HALVES];
    longs integers[HALVES];
};

union short_column {
    int16_t integer[LANES];
    shorts integers;
};

union rounded_column {
    float number[LANES];
    floats numbers[QUARTERS];
};

union rank_column {
    int32_t integer[LANES];
    ints integers[QUARTERS];
};
