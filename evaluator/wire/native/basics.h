/* Types, two classes of characters, and CRC-32. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned char byte;

static const byte *skip_space(const byte *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')
        at++;
    return at;
}

static bool is_digit(byte c)
{
    return (unsigned)c - '0' < 10;
}

/* --- CRC-32 --- */

static const uint32_t CRC_32 = 0xedb88320, CRC_32C = 0x82f63b78; /* reversed polynomials */

static uint32_t crc_of_byte(uint32_t polynomial, uint32_t crc)
{
    for (int bit = 0; bit < 8; bit++)
        crc = crc >> 1 ^ (polynomial & -(crc & 1));
    return crc;
}

/* Fills [256]; takes as long as the CRC of a few KB. */
static void fill_crc_table(uint32_t *table, uint32_t polynomial)
{
    for (uint32_t i = 0; i < 256; i++)
        table[i] = crc_of_byte(polynomial, i);
}

static uint32_t crc_by_table(const uint32_t *table, const byte *at, const byte *end)
{
    uint32_t crc = UINT32_MAX;
    while (at < end)
        crc = crc >> 8 ^ table[(crc ^ *at++) & 0xff];
    return ~crc;
}
