/*
 * What a search of the planner `exact` works on, and how it takes changes back.
 *
 * All memory belongs to the caller. Numbers are 64 bits wide; sums of hashes wrap.
 */
#include <stdint.h>

typedef int64_t number;
typedef uint64_t hash;

#define FAR INT64_MAX

enum switches { INFERENCE = 1, FLOORS = 2, HOLES = 4, HATLESS = 8, PARTS = 16, LIFTS = 32, TWINS = 64, MEMORY = 128 };
enum rules { LEAST_SLACK, WEIGHTED_SLACK, EARLIEST, LATEST };
enum fits { NONE, SIDES, TOPS };
enum results { FOUND, IMPOSSIBLE, OUT_OF_STEPS, MORE_ROOM };
enum changes { LOW, TOP, FLOOR, PLACED, PINNED, CHANGES };
enum fields { BEGIN, END, SECTION, FIRST, NEXT, COUNT, MARK, LONELY, FIELDS };
enum phases { SPLIT, TRY };

struct search {
    /* the problem: pieces by number, sections by number, lists as in a compressed sparse row matrix */
    number pieces, sections, switches;
    const number *size, *section_start, *section, *member_start, *member, *near_start, *near;
    const number *range_start, *range, *align, *shift, *tie, *twin, *single, *hull_end, *ceiling;
    const hash *key_low, *key_top, *key_piece, *key_pinned;
    /* how to branch in this run */
    number rule, fit;
    const number *rank, *by_rank;
    /* the state */
    number *low, *top, *placed, *pinned, *floor, *total, *left, *weight;
    hash *sum;
    /* scratch */
    number *mark, *dirty, tick, dirty_count;
    /* undone on the way back */
    number *trail, trail_count, trail_room, trail_step;
    /* the path */
    number *frame, frame_count, frame_room, *choice, choice_count, choice_room, phase, at, until;
    hash *frame_key;
    /* failed states */
    hash *table, table_mask;
    /* counters */
    number steps, nodes, fails, known, lifted;
};

static number ceil_multiple(number value, number step) { return (value + step - 1) / step * step; }

/* The lowest place of a piece, at or above `value`; FAR if there is none. */
static number snap(const struct search *s, number piece, number value)
{
    number align = s->align[piece], shift = s->shift[piece];
    for (number k = s->range_start[piece]; k < s->range_start[piece + 1]; k++) {
        number place = value > s->range[2 * k] ? value : s->range[2 * k];
        if (align != 1)
            place = ceil_multiple(place - shift, align) + shift;
        if (place <= s->range[2 * k + 1])
            return place;
    }
    return FAR;
}

static void remember(struct search *s, number change, number index, number old)
{
    s->trail[s->trail_count++] = index * CHANGES + change;
    s->trail[s->trail_count++] = old;
}

static void add_key(struct search *s, number piece, const hash *keys, hash factor)
{
    hash *sum = s->sum + 2 * s->section[s->section_start[piece]];
    sum[0] += keys[2 * piece] * factor;
    sum[1] += keys[2 * piece + 1] * factor;
}

/* Add (factor 1) or take away (factor -1) all that a piece that is not placed means for the key of a state. */
static void add_piece(struct search *s, number piece, hash factor)
{
    add_key(s, piece, s->key_piece, factor);
    add_key(s, piece, s->key_low, factor * (hash)s->low[piece]);
    if (s->switches & HOLES)
        add_key(s, piece, s->key_top, factor * (hash)s->top[piece]);
    if (s->pinned[piece])
        add_key(s, piece, s->key_pinned, factor);
}

static void undo(struct search *s, number mark)
{
    while (s->trail_count > mark) {
        number old = s->trail[--s->trail_count];
        number code = s->trail[--s->trail_count];
        number index = code / CHANGES;
        switch (code % CHANGES) {
        case LOW:
            add_key(s, index, s->key_low, (hash)old - (hash)s->low[index]);
            s->low[index] = old;
            break;
        case TOP:
            add_key(s, index, s->key_top, (hash)old - (hash)s->top[index]);
            s->top[index] = old;
            break;
        case FLOOR:
            s->floor[index] = old;
            break;
        case PINNED:
            add_key(s, index, s->key_pinned, (hash)-1);
            s->pinned[index] = 0;
            break;
        case PLACED:
            s->placed[index] = 0;
            add_piece(s, index, 1);
            for (number k = s->section_start[index]; k < s->section_start[index + 1]; k++) {
                s->total[s->section[k]] += s->size[index];
                s->left[s->section[k]]++;
            }
        }
    }
}
