/* The digits of doubles. Needs basics.h and numbers.h. */

/* The shortest digits x 10^power that reads as a double above 0, the nearest of these.
   Source: Giulietti 2020, The Schubfach way to render doubles. */
static bool shortest(double value, uint64_t *digits, int64_t *power)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t fraction = bits & (((uint64_t)1 << 52) - 1);
    int64_t exponent = bits >> 52 & 0x7ff;
    if (exponent == 0 || exponent == 0x7ff)
        return false;
    uint64_t mantissa = fraction | (uint64_t)1 << 52;
    int64_t q = exponent - 1075, is_even = !(mantissa & 1), is_power = !fraction && exponent > 1;
    int64_t k = (q * 1262611 - (is_power ? 524031 : 0)) >> 22; /* floor of log10 of the interval */
    if (-k < LEAST_POWER || -k > MOST_POWER)
        return false;
    int64_t shift = q + ((-k * 1741647) >> 19) + 1;
    const uint64_t *five = powers_of_five[-k - LEAST_POWER];
    uint64_t low = five[1] + (-k < -27 || -k > 55), high = five[0] + (low < five[1]); /* rounded up */
    uint64_t bounds[3] = {4 * mantissa - 2 + is_power, 4 * mantissa, 4 * mantissa + 2};
    for (int i = 0; i < 3; i++) { /* times 10^-k, rounded to odd */
        uint128 product = (uint128)high * (bounds[i] << shift) +
                          ((uint128)low * (bounds[i] << shift) >> 64);
        bounds[i] = (uint64_t)(product >> 64) | ((uint64_t)product > 1);
    }
    uint64_t lower = bounds[0] + !is_even, middle = bounds[1], upper = bounds[2] - !is_even;
    uint64_t fine = middle / 4, coarse = fine / 10;
    bool down = lower <= 40 * coarse, up = 40 * coarse + 40 <= upper;
    if (fine >= 10 && down != up) {
        *digits = coarse + up;
        *power = k + 1;
    } else {
        down = lower <= 4 * fine;
        up = 4 * fine + 4 <= upper;
        if (down == up)
            up = middle > 4 * fine + 2 || (middle == 4 * fine + 2 && (fine & 1));
        *digits = fine + up;
        *power = k;
    }
    for (; *digits % 10 == 0; ++*power)
        *digits /= 10;
    return true;
}
