/* Parses JSON numbers. Needs basics.h. */

#include <float.h>

#if FLT_EVAL_METHOD != 0
#error "a product of two doubles must be rounded once: build for SSE2, not for the x87"
#endif

__extension__ typedef unsigned __int128 uint128;

/* Significant bits of 5^q for q = -342 .. 308, as two words, high first; set by the caller. */
enum { LEAST_POWER = -342, MOST_POWER = 308 };
static uint64_t (*powers_of_five)[2];

EXPORT void set_powers_of_five(uint64_t (*table)[2])
{
    powers_of_five = table;
}

static double double_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* The double nearest to digits x 10^power, halves to even; false if it is not a normal one.
   Source: Clinger 1990, How to read floating point numbers accurately (short ones); Lemire 2021,
   Number parsing at a gigabyte per second (the others). */
static bool nearest_double(uint64_t digits, int64_t power, double *value)
{
    if (digits == 0) {
        *value = 0.0;
        return true;
    }
    if (digits <= (uint64_t)1 << 53 && power >= -22 && power <= 22) { /* both exact: one rounding */
        *value = power < 0 ? (double)digits / tens[-power] : (double)digits * tens[power];
        return true;
    }
    if (power < LEAST_POWER || power > MOST_POWER)
        return false;
    const uint64_t *five = powers_of_five[power - LEAST_POWER];
    int zeros = __builtin_clzll(digits);
    digits <<= zeros;
    uint128 product = (uint128)digits * five[0];
    uint64_t high = product >> 64, low = product;
    if ((high & 0x1ff) == 0x1ff) { /* the bits below the mantissa are uncertain */
        uint64_t rest = (uint128)digits * five[1] >> 64;
        low += rest;
        high += low < rest;
    }
    if (low == UINT64_MAX) /* may carry */
        return false;
    int upper = high >> 63;
    uint64_t mantissa = high >> (upper + 9); /* 54 bits: one more than a double has */
    int64_t exponent = ((217706 * power) >> 16) + 63 + upper - zeros + 1023; /* 217706/2^16: log2 10 */
    if (exponent <= 0)
        return false;
    if (low <= 1 && power >= -4 && power <= 23 && (mantissa & 3) == 1 &&
        mantissa << (upper + 9) == high)
        mantissa &= ~(uint64_t)1; /* halfway between two doubles: to the even one */
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    if (mantissa == (uint64_t)1 << 53) {
        mantissa >>= 1;
        exponent++;
    }
    if (exponent >= 0x7ff)
        return false;
    *value = double_of_bits((mantissa & (((uint64_t)1 << 52) - 1)) | (uint64_t)exponent << 52);
    return true;
}

static int64_t n_significant(const byte *from, const byte *to)
{
    int64_t n = 0;
    for (; from < to; from++)
        if (*from != '.' && (n || *from != '0'))
            n++;
    return n;
}

static const byte *read_exponent(const byte *at, int64_t *exponent)
{
    bool negative = *at == '-';
    if (negative || *at == '+')
        at++;
    const byte *first = at;
    *exponent = 0;
    while (is_digit(*at) && at - first < 6)
        *exponent = 10 * *exponent + (*at++ - '0');
    if (at == first || is_digit(*at))
        return NULL;
    if (negative)
        *exponent = -*exponent;
    return at;
}

/* A number as a finite double, -0.0 as 0.0; without `value` it is only checked. */
static const byte *read_number(const byte *at, double *value)
{
    bool negative = *at == '-';
    at += negative;
    const byte *first = at, *point = NULL;
    uint64_t digits = 0; /* overflows only with too many digits */
    while (is_digit(*at))
        digits = 10 * digits + (*at++ - '0');
    if (at == first || (*first == '0' && at - first > 1))
        return NULL;
    int64_t power = 0, exponent;
    if (*at == '.') {
        point = ++at;
        while (is_digit(*at))
            digits = 10 * digits + (*at++ - '0');
        power = point - at;
        if (power == 0)
            return NULL;
    }
    if (at - first > 19 && n_significant(first, at) > 19)
        return NULL;
    if (*at == 'e' || *at == 'E') {
        if (!(at = read_exponent(at + 1, &exponent)))
            return NULL;
        power += exponent;
    }
    double unused;
    if (!value && power >= -22 && power <= 22)
        return at;
    value = value ? value : &unused;
    if (!nearest_double(digits, power, value))
        return NULL;
    if (negative && *value != 0.0)
        *value = -*value;
    return at;
}

/* The same for eight bytes, which are read at once: a digit, a point, and up to five digits need no
   branch per digit. Source: Lemire 2021, the digits of a word. */
static const byte *read_short_number(const byte *at, double *value)
{
    const uint64_t zeros = 0x3030303030303030, high_bits = 0x8080808080808080;
    uint64_t word;
    memcpy(&word, at, 8);
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !is_digit(*at) || at[1] != '.')
        return read_number(at, value);
    uint64_t digits = (word ^ zeros) >> 16; /* 0 to 9 from the point on, then anything */
    uint64_t others = ((digits & ~high_bits) + 0x7676767676767676) | digits;
    int n = __builtin_ctzll((others & high_bits) | (uint64_t)1 << 55) / 8;
    if (n == 0 || n > 5 || (at[2 + n] | 0x20) == 'e')
        return read_number(at, value);
    if (value) {
        digits = digits << 8 * (8 - n); /* the last digit in the highest byte */
        digits = digits * 10 + (digits >> 8);
        digits = (((digits & 0x000000ff000000ff) * (100 + ((uint64_t)1000000 << 32))) +
                  ((digits >> 16 & 0x000000ff000000ff) * (1 + ((uint64_t)10000 << 32)))) >> 32;
        *value = (double)(digits + (*at - '0') * (uint64_t)tens[n]) / tens[n];
    }
    return at + 2 + n;
}

/* Reads an int64 of at least `least`. */
static const byte *read_integer(const byte *at, int64_t least, int64_t *value)
{
    const byte *first = at;
    uint64_t digits = 0;
    while (is_digit(*at))
        digits = 10 * digits + (*at++ - '0');
    int64_t n = at - first;
    if (n == 0 || n > 19 || (*first == '0' && n > 1) || digits > INT64_MAX ||
        (int64_t)digits < least)
        return NULL;
    *value = (int64_t)digits;
    return at;
}

/* A number that no double can hold is refused, like some others with as many digits. */
static const byte *skip_number(const byte *at)
{
    at += *at == '-';
    const byte *first = at;
    while (is_digit(*at))
        at++;
    if (at == first || (*first == '0' && at - first > 1) || at - first > 200)
        return NULL;
    if (*at == '.') {
        first = ++at;
        while (is_digit(*at))
            at++;
        if (at == first)
            return NULL;
    }
    if (*at == 'e' || *at == 'E') {
        int most = at[1] == '-' ? 4 : 2;
        at++;
        at += *at == '+' || *at == '-';
        first = at;
        while (is_digit(*at))
            at++;
        if (at == first || at - first > most)
            return NULL;
    }
    return at;
}
