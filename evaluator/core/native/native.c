/* A hash index: 64-bit key hashes and a number for each, in 8 bytes per place.

   The first bits of a hash select one of the parts of the index. An entry holds the next bits of the hash and
   the number. It is stored at the place that its bits select in the table of its part, or in the next free
   place after that, with wrap-around (linear probing). Removal moves later entries back, so that no place
   between an entry and its home is free. Tables grow and shrink part by part, so no single step takes long.

   Plain C without Python: `library.py` passes arrays. A part has at least one free place, or no places
   and no entries, so every probe ends. */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    PART_BITS = 16,
    TAG_BITS = 28,
    NUMBER_BITS = 36,
    FEWEST_PLACES = 4
};

struct part {
    uint64_t *places; /* 0: free */
    uint32_t n_places, n_entries;
};

struct index {
    struct part parts[1 << PART_BITS];
    int64_t n_entries, n_places;
};

static struct part *part_of(struct index *index, uint64_t hash)
{
    return &index->parts[hash >> (64 - PART_BITS)];
}

static uint64_t tag_of(uint64_t hash)
{
    return hash << PART_BITS >> (64 - TAG_BITS);
}

/* The first place that an entry with this tag may take. */
static uint32_t home(const struct part *part, uint64_t tag)
{
    return (uint32_t)(tag * part->n_places >> TAG_BITS);
}

/* The place of an entry, or the free one where it would be stored; there must be a free one. */
static uint32_t place_of(const struct part *part, uint64_t tag)
{
    uint32_t at = home(part, tag);
    while (part->places[at] && part->places[at] >> NUMBER_BITS != tag)
        at = at + 1 == part->n_places ? 0 : at + 1;
    return at;
}

static bool resize(struct index *index, struct part *part, uint32_t n_places)
{
    struct part resized = {calloc(n_places, sizeof *resized.places), n_places, part->n_entries};
    if (!resized.places)
        return false;
    for (uint32_t at = 0; at < part->n_places; at++)
        if (part->places[at])
            resized.places[place_of(&resized, part->places[at] >> NUMBER_BITS)] = part->places[at];
    index->n_places += (int64_t)n_places - part->n_places;
    free(part->places);
    *part = resized;
    return true;
}

EXPORT struct index *index_new(void)
{
    return calloc(1, sizeof(struct index));
}

EXPORT void index_free(struct index *index)
{
    for (int64_t part = 0; part < 1 << PART_BITS; part++)
        free(index->parts[part].places);
    free(index);
}

EXPORT int64_t index_bytes(const struct index *index)
{
    return (int64_t)sizeof *index + 8 * index->n_places;
}

EXPORT int64_t index_length(const struct index *index)
{
    return index->n_entries;
}

/* The number of each hash; 0 for a hash without an entry. */
EXPORT void index_find(struct index *index, int64_t n, const uint64_t *hashes, int64_t *numbers)
{
    for (int64_t i = 0; i < n; i++) {
        const struct part *part = part_of(index, hashes[i]);
        uint64_t entry = part->n_entries ? part->places[place_of(part, tag_of(hashes[i]))] : 0;
        numbers[i] = (int64_t)(entry & (((uint64_t)1 << NUMBER_BITS) - 1));
    }
}

/* Stores a number for each hash, from 1 to 2^36 - 1. False if memory cannot be allocated: then some of
   them are stored. */
EXPORT bool index_put(struct index *index, int64_t n, const uint64_t *hashes, const int64_t *numbers)
{
    for (int64_t i = 0; i < n; i++) {
        struct part *part = part_of(index, hashes[i]);
        uint32_t n_places = part->n_places;
        if (part->n_entries + 1 > n_places - n_places / 8 || part->n_entries + 1 >= n_places) {
            n_places = n_places < FEWEST_PLACES ? FEWEST_PLACES : n_places + n_places / 4;
            if (!resize(index, part, n_places))
                return false;
        }
        uint64_t tag = tag_of(hashes[i]);
        uint64_t *place = &part->places[place_of(part, tag)];
        part->n_entries += !*place;
        index->n_entries += !*place;
        *place = tag << NUMBER_BITS | (uint64_t)numbers[i];
    }
    return true;
}

static void remove_at(struct part *part, uint32_t hole)
{
    for (uint32_t at = hole;;) {
        at = at + 1 == part->n_places ? 0 : at + 1;
        if (!part->places[at])
            break;
        uint32_t from = home(part, part->places[at] >> NUMBER_BITS);
        /* It may move unless the hole is before its home; distances wrap around. */
        uint32_t to_hole = hole >= from ? hole - from : hole + part->n_places - from;
        uint32_t to_here = at >= from ? at - from : at + part->n_places - from;
        if (to_hole < to_here) {
            part->places[hole] = part->places[at];
            hole = at;
        }
    }
    part->places[hole] = 0;
}

/* Removes the entries of hashes; unknown hashes are ignored. */
EXPORT void index_remove(struct index *index, int64_t n, const uint64_t *hashes)
{
    for (int64_t i = 0; i < n; i++) {
        struct part *part = part_of(index, hashes[i]);
        if (!part->n_entries)
            continue;
        uint32_t at = place_of(part, tag_of(hashes[i]));
        if (!part->places[at])
            continue;
        remove_at(part, at);
        part->n_entries--;
        index->n_entries--;
        uint32_t n_places = part->n_places;
        if (n_places > FEWEST_PLACES && part->n_entries < n_places / 2)
            resize(index, part, n_places - n_places / 4); /* if allocation fails, the table keeps its size */
    }
}
