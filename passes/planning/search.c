/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of the planner `exact`: whether everything fits below a ceiling. Depth first, bottom up.
 *
 * A state is a set of pieces that are not placed, and for each of them the lowest offset that what is placed leaves to
 * it. The floor of a section is the lowest of these among its pieces. Where minimalloc (Moffitt, ASPLOS 2023) branches
 * on which buffer of all to place next, in canonical order, this search (ours) branches on what lies at the floor of
 * one section:
 *
 * 1. Split: what is left falls into parts of the time axis that nothing left crosses; each is a frame of its own.
 * 2. Choose the section with the lowest floor, and among several the one that the rule of the run names.
 * 3. Either one of the pieces that may start at that floor starts there, or none does; then the floor rises (a lift),
 *    and the slack of the section is used up by as much.
 * 4. After each, raise the lowest offsets of all that meet the piece, and go back where a section overflows: to the
 *    last decision that the failure is about (conflict-directed backjumping, Prosser 1993). What a failure is about is
 *    told by sections, `from` to `to`: all decisions on pieces alive in them. An offset of a piece is as high as it is
 *    only on account of decisions in its own sections; so a section overflows on account of those in the sections of
 *    what is left in it, and a lift skips offsets on account of those of all that its pieces may rest on.
 *
 * The branches are disjoint, so that no state is met twice by them; offsets never decrease along a path, so that the
 * pieces below any floor are all placed; and a section with no slack left has as many branches as pieces that fit.
 *
 * Why a lift may skip offsets: if there is a plan at all, there is one with the least sum of offsets, and in it
 * everything rests on something that lies just below it, or on the bottom, and fits in no hole further down. The
 * search looks for that plan and for no other; among interchangeable pieces, for the one with the first of them lowest.
 *
 * All memory belongs to the caller. Numbers are 64 bits wide; sums of hashes wrap.
 */
#include <stdint.h>

typedef int64_t number;
typedef uint64_t hash;

#define FAR INT64_MAX

enum switches { INFERENCE = 1, FLOORS = 2, HOLES = 4, HATLESS = 8, PARTS = 16, LIFTS = 32, TWINS = 64, MEMORY = 128,
                JUMPS = 256 };
enum rules { LEAST_SLACK, WEIGHTED_SLACK, EARLIEST, LATEST, FIRST_RANK };
enum fits { NONE, SIDES, TOPS };
enum results { FOUND, IMPOSSIBLE, OUT_OF_STEPS, MORE_ROOM };
enum changes { LOW, TOP, FLOOR, PLACED, PINNED, CHANGES };
enum fields { BEGIN, END, SECTION, FIRST, NEXT, COUNT, MARK, LONELY, PIECE, FROM, TO, FIELDS };
enum phases { SPLIT, TRY };

/* The fields are those of `_POINTERS` and `_NUMBERS` in exact.py. */
struct search {
    /* the problem: pieces by number, sections by number, lists as in a compressed sparse row matrix */
    const number *size, *section_start, *section, *member_start, *member, *near_start, *near;
    const number *range_start, *range, *align, *shift, *tie, *twin, *single, *hull_begin, *hull_end, *ceiling;
    const hash *key_low, *key_top, *key_piece, *key_pinned;
    /* the order of this run */
    const number *rank, *by_rank;
    /* the state */
    number *low, *top, *placed, *pinned, *floor, *total, *left, *weight;
    hash *sum;
    /* scratch */
    number *mark, *dirty;
    /* undone on the way back; the path; failed states */
    number *trail, *frame, *choice;
    hash *frame_key, *table;
    /* the problem, and how to branch in this run */
    number pieces, sections, switches, rule, fit;
    /* scratch, and what of each array is in use and allocated */
    number tick, dirty_count, trail_count, trail_room, trail_step, frame_count, frame_room, choice_count, choice_room;
    number phase, at, until;
    /* the sections that the last failure is about */
    number from, to;
    hash table_mask;
    /* counters */
    number steps, nodes;
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

static void stain(struct search *s, number section)
{
    if (s->mark[section] != s->tick) {
        s->mark[section] = s->tick;
        s->dirty[s->dirty_count++] = section;
    }
}

/* The failure is about all decisions that concern a piece, those before it on whose account it lies so high. */
static void blame(struct search *s, number piece)
{
    if (s->hull_begin[piece] < s->from)
        s->from = s->hull_begin[piece];
    if (s->hull_end[piece] > s->to)
        s->to = s->hull_end[piece];
}

static void blame_section(struct search *s, number section)
{
    for (number m = s->member_start[section]; m < s->member_start[section + 1]; m++)
        if (!s->placed[s->member[m]])
            blame(s, s->member[m]);
}

static int raise_one(struct search *s, number piece, number value)
{
    number old = s->low[piece];
    if (s->pinned[piece] || s->placed[piece])
        return 0;
    remember(s, LOW, piece, old);
    add_key(s, piece, s->key_low, (hash)value - (hash)old);
    s->low[piece] = value;
    for (number k = s->section_start[piece]; k < s->section_start[piece + 1]; k++)
        if (s->floor[s->section[k]] == old)
            stain(s, s->section[k]);
    return 1;
}

/* Nothing of a piece, nor of those tied to it, lies lower any more. */
static int raise(struct search *s, number piece, number value)
{
    value = snap(s, piece, value);
    if (value == FAR || !raise_one(s, piece, value)) {
        blame(s, piece);
        return 0;
    }
    for (number other = s->tie[piece]; other != piece; other = s->tie[other]) {
        number theirs = value - s->shift[piece] + s->shift[other];
        if (s->low[other] < theirs && !raise_one(s, other, theirs)) {
            blame(s, piece);
            return 0;
        }
    }
    return 1;
}

static void set_floor(struct search *s, number section, number floor)
{
    if (s->floor[section] != floor) {
        remember(s, FLOOR, section, s->floor[section]);
        s->floor[section] = floor;
    }
}

/* New floors for the sections that may have one, and whether what is left still fits above them. */
static int settle(struct search *s)
{
    for (number k = 0; k < s->dirty_count; k++) {
        number section = s->dirty[k], least = FAR;
        if (!s->left[section])
            continue;
        if (s->switches & FLOORS) {
            for (number m = s->member_start[section]; m < s->member_start[section + 1]; m++) {
                number piece = s->member[m];
                if (!s->placed[piece] && s->low[piece] < least) {
                    least = s->low[piece];
                    if (least <= s->floor[section])
                        break;
                }
            }
            set_floor(s, section, least);
        }
        if ((s->switches & INFERENCE) && s->floor[section] + s->total[section] > s->ceiling[section]) {
            s->weight[section]++;
            blame_section(s, section);
            return 0;
        }
    }
    return 1;
}

/* Fix those tied to a piece that was just placed. */
static void pin(struct search *s, number piece)
{
    for (number other = s->tie[piece]; other != piece; other = s->tie[other])
        if (!s->placed[other] && !s->pinned[other]) {
            remember(s, PINNED, other, 0);
            s->pinned[other] = 1;
            add_key(s, other, s->key_pinned, 1);
        }
}

/* Put a piece where it lies lowest. *lonely tells whether nothing that is left ever meets it. */
static int place(struct search *s, number piece, number *lonely)
{
    number top = s->low[piece] + s->size[piece];
    s->tick++;
    s->dirty_count = 0;
    *lonely = s->single[piece];
    add_piece(s, piece, (hash)-1);
    s->placed[piece] = 1;
    remember(s, PLACED, piece, 0);
    pin(s, piece);
    for (number k = s->section_start[piece]; k < s->section_start[piece + 1]; k++) {
        number section = s->section[k];
        s->total[section] -= s->size[piece];
        s->left[section]--;
        set_floor(s, section, top);
        stain(s, section);
    }
    s->steps += s->near_start[piece + 1] - s->near_start[piece];
    for (number k = s->near_start[piece]; k < s->near_start[piece + 1]; k++) {
        number other = s->near[k];
        if (s->placed[other])
            continue;
        *lonely = 0;
        if ((s->switches & HOLES) && s->top[other] < top) {
            number rest = snap(s, other, top);
            if (rest == FAR) {
                blame(s, other);
                return 0;
            }
            remember(s, TOP, other, s->top[other]);
            add_key(s, other, s->key_top, (hash)rest - (hash)s->top[other]);
            s->top[other] = rest;
        }
        if (s->low[other] < top && !raise(s, other, top))
            return 0;
    }
    return settle(s);
}

/* The lowest place above the floor of `section` where a piece of it may rest on one that is not placed. */
static number next_rest(struct search *s, number piece, number floor)
{
    number best = FAR, tied = piece;
    do {
        s->steps += s->near_start[tied + 1] - s->near_start[tied];
        for (number k = s->near_start[tied]; k < s->near_start[tied + 1]; k++) {
            number other = s->near[k];
            if (s->placed[other] || (tied == piece && s->mark[s->sections + other] == s->tick))
                continue;
            blame(s, other);
            number end = s->low[other] + s->size[other] - s->shift[tied] + s->shift[piece];
            /* it may come to lie higher than now, where it holds what is tied to this one by a distance */
            if (end <= floor)
                end = floor + 1;
            if (end < best)
                best = end;
        }
        tied = s->tie[tied];
    } while (tied != piece);
    return best == FAR ? FAR : snap(s, piece, best);
}

/* Nothing of `section` starts at its floor. */
static int lift(struct search *s, number section)
{
    number floor = s->floor[section], begin = s->member_start[section], end = s->member_start[section + 1];
    number slack = s->ceiling[section] - floor - s->total[section], next = FAR;
    if ((s->switches & INFERENCE) && slack <= 0)
        return 0;
    s->tick++;
    s->dirty_count = 0;
    for (number m = begin; m < end; m++)
        s->mark[s->sections + s->member[m]] = s->tick;
    for (number m = begin; m < end; m++) {
        number piece = s->member[m], rest;
        if (s->placed[piece])
            continue;
        if (s->low[piece] > floor)
            rest = s->low[piece];
        else if (s->pinned[piece])
            return 0;
        else
            rest = s->switches & LIFTS ? next_rest(s, piece, floor) : snap(s, piece, floor + 1);
        if (rest < next)
            next = rest;
    }
    if (next == FAR || ((s->switches & INFERENCE) && next - floor > slack))
        return 0;
    set_floor(s, section, next);
    stain(s, section);
    for (number m = begin; m < end; m++) {
        number piece = s->member[m];
        if (!s->placed[piece] && s->low[piece] < next && !raise(s, piece, next))
            return 0;
    }
    if (!settle(s))
        return 0;
    if (s->switches & HOLES)
        for (number m = begin; m < end; m++) {
            number piece = s->member[m], hole = s->top[piece] + s->size[piece], fits = 1;
            if (s->placed[piece] || !s->single[piece] || hole > next || s->top[piece] >= s->low[piece])
                continue;
            for (number k = s->section_start[piece]; fits && k < s->section_start[piece + 1]; k++)
                fits = s->floor[s->section[k]] >= hole;
            if (fits)
                return 0;
        }
    return 1;
}

/* The tightest section at the lowest floor of the piece of the first rank that may start there. */
static number choose_ranked(struct search *s, number begin, number end)
{
    number floor = FAR, best = -1, least = FAR;
    for (number k = begin; k < end; k++)
        if (s->left[k] && s->floor[k] < floor) {
            floor = s->floor[k];
            best = k;
        }
    for (number r = 0; r < s->pieces; r++) {
        number piece = s->by_rank[r], first = s->section[s->section_start[piece]];
        if (s->placed[piece] || s->low[piece] != floor || first < begin || first >= end)
            continue;
        for (number k = s->section_start[piece]; k < s->section_start[piece + 1]; k++) {
            number section = s->section[k];
            number slack = s->ceiling[section] - s->total[section];
            if (s->floor[section] == floor && slack < least) {
                least = slack;
                best = section;
            }
        }
        if (least != FAR)
            return best;
    }
    return best;
}

/* The section to fill next: of those with the lowest floor the one that the rule names. */
static number choose(struct search *s, number begin, number end)
{
    number best = -1, best_floor = FAR, best_key = 0;
    if (s->rule == FIRST_RANK)
        return choose_ranked(s, begin, end);
    for (number k = begin; k < end; k++) {
        number key = 0;
        if (!s->left[k] || s->floor[k] > best_floor)
            continue;
        switch (s->rule) {
        case LEAST_SLACK:
            key = s->ceiling[k] - s->floor[k] - s->total[k];
            break;
        case WEIGHTED_SLACK:
            key = s->ceiling[k] - s->floor[k] - s->total[k];
            key = ((key < 0 ? 0 : key) + 1) * 4096 / s->weight[k];
            break;
        case EARLIEST:
            key = k;
            break;
        case LATEST:
            key = -k;
        }
        if (s->floor[k] < best_floor || key < best_key) {
            best = k;
            best_floor = s->floor[k];
            best_key = key;
        }
    }
    return best;
}

/* The sides at which a piece leaves a pit where it lies lowest, and those at which its top leaves a step: 0 to 4. */
static number misfit(const struct search *s, number piece)
{
    number fit = s->fit, first = s->section[s->section_start[piece]];
    number last = s->section[s->section_start[piece + 1] - 1] + 1, low = s->low[piece], top = low + s->size[piece];
    number steps = 0;
    if (first > 0 && s->left[first - 1])
        steps += (fit >= SIDES && s->floor[first - 1] <= low) + (fit >= TOPS && s->floor[first - 1] != top);
    if (last < s->sections && s->left[last])
        steps += (fit >= SIDES && s->floor[last] <= low) + (fit >= TOPS && s->floor[last] != top);
    return steps;
}

/* The pieces of a section that may start at its floor, those that fit best first, then by rank. */
static number collect(struct search *s, number section)
{
    number *choice = s->choice + s->choice_count, count = 0;
    for (number m = s->member_start[section]; m < s->member_start[section + 1]; m++) {
        number piece = s->member[m], k = count;
        if (s->placed[piece] || s->low[piece] != s->floor[section])
            continue;
        if ((s->switches & TWINS) && s->twin[piece] >= 0) {
            /* of interchangeable pieces the first goes first; the members of a section ascend */
            while (k > 0 && s->twin[s->by_rank[choice[k - 1] % s->pieces]] != s->twin[piece])
                k--;
            if (k > 0)
                continue;
        }
        number key = s->rank[piece] + (s->fit ? s->pieces * misfit(s, piece) : 0);
        for (k = count++; k > 0 && choice[k - 1] > key; k--)
            choice[k] = choice[k - 1];
        choice[k] = key;
    }
    s->choice_count += count;
    return count;
}

static hash *slot(struct search *s, number frame)
{
    return s->table + 3 * (s->frame_key[2 * frame] & s->table_mask);
}

/* Enter a part of the time axis. Returns 0 where it is known to fail. */
static int enter(struct search *s, number begin, number end)
{
    number index = s->frame_count, *frame = s->frame + index * FIELDS;
    hash *key = s->frame_key + 2 * index;
    s->nodes++;
    s->steps += 1 + end - begin;
    if (s->switches & MEMORY) {
        key[0] = key[1] = 0;
        for (number k = begin; k < end; k++) {
            key[0] += s->sum[2 * k];
            key[1] += s->sum[2 * k + 1];
        }
        if (slot(s, index)[0] == key[0] && slot(s, index)[1] == key[1]) {
            s->from = (number)(slot(s, index)[2] >> 32);
            s->to = (number)(slot(s, index)[2] & UINT32_MAX);
            return 0;
        }
    }
    frame[BEGIN] = begin;
    frame[END] = end;
    frame[SECTION] = choose(s, begin, end);
    frame[FIRST] = s->choice_count;
    frame[NEXT] = 0;
    frame[COUNT] = collect(s, frame[SECTION]);
    frame[MARK] = s->trail_count;
    frame[LONELY] = 0;
    frame[FROM] = s->sections;
    frame[TO] = 0;
    s->frame_count++;
    return 1;
}

/* Where the next part that nothing unplaced crosses ends, from `begin`, which something unplaced is alive in. */
static number part_end(struct search *s, number begin, number end)
{
    number reach = begin + 1;
    if (!(s->switches & PARTS))
        return end;
    for (number k = begin; k < reach; k++)
        for (number m = s->member_start[k]; m < s->member_start[k + 1]; m++)
            if (!s->placed[s->member[m]] && s->hull_end[s->member[m]] > reach)
                reach = s->hull_end[s->member[m]];
    return reach;
}

/* What the last failure is about is a reason for that of a frame, too. */
static void add_reason(const struct search *s, number *frame)
{
    if (s->from < frame[FROM])
        frame[FROM] = s->from;
    if (s->to > frame[TO])
        frame[TO] = s->to;
}

/* The next way at the deepest frame. Returns 0 where there is none. */
static int next_way(struct search *s)
{
    number *frame = s->frame + (s->frame_count - 1) * FIELDS, lonely;
    undo(s, frame[MARK]);
    while (!frame[LONELY] && frame[NEXT] <= frame[COUNT]) {
        number fits, next = frame[NEXT]++;
        s->from = s->sections;
        s->to = 0;
        if (next == frame[COUNT]) {
            frame[PIECE] = -1;
            fits = lift(s, frame[SECTION]);
        } else {
            frame[PIECE] = s->by_rank[s->choice[frame[FIRST] + next] % s->pieces];
            fits = place(s, frame[PIECE], &lonely);
            frame[LONELY] = lonely && (s->switches & HATLESS);
        }
        add_reason(s, frame);
        if (fits)
            return 1;
        undo(s, frame[MARK]);
    }
    blame_section(s, frame[SECTION]);
    add_reason(s, frame);
    s->from = frame[FROM];
    s->to = frame[TO];
    return 0;
}

/* The deepest frame fails, about the sections from `from` to `to`. */
static void drop(struct search *s)
{
    s->frame_count--;
    s->choice_count = s->frame[s->frame_count * FIELDS + FIRST];
    if (s->switches & MEMORY) {
        hash *place = slot(s, s->frame_count), *key = s->frame_key + 2 * s->frame_count;
        place[0] = key[0];
        place[1] = key[1];
        place[2] = (hash)s->from << 32 | (hash)s->to;
    }
}

/* Go back to the last decision that the last failure is about. Returns 0 where there is none. */
static int jump(struct search *s)
{
    while (s->frame_count) {
        number *frame = s->frame + (s->frame_count - 1) * FIELDS, piece = frame[PIECE];
        number begin = piece < 0 ? frame[SECTION] : s->hull_begin[piece];
        number end = piece < 0 ? frame[SECTION] + 1 : s->hull_end[piece];
        if (!(s->switches & JUMPS) || (begin < s->to && s->from < end)) {
            add_reason(s, frame);
            return 1;
        }
        undo(s, frame[MARK]);
        drop(s);
    }
    return 0;
}

/* Go on until a result, or until as many steps or nodes were taken in all. */
int penstock_search(struct search *s, number step_limit, number node_limit)
{
    for (;;) {
        if (s->phase == SPLIT) {
            while (s->at < s->until && !s->left[s->at])
                s->at++;
            if (s->at < s->until) {
                if (s->steps >= step_limit || s->nodes >= node_limit)
                    return OUT_OF_STEPS;
                if (s->frame_count + 2 > s->frame_room || s->choice_count + s->pieces > s->choice_room ||
                    s->trail_count + s->trail_step > s->trail_room)
                    return MORE_ROOM;
                s->phase = TRY;
                if (!enter(s, s->at, part_end(s, s->at, s->until)) && !jump(s))
                    return IMPOSSIBLE;
                continue;
            }
            if (!s->frame_count)
                return FOUND;
            /* the part of the deepest frame is done: go on after it */
            s->frame_count--;
            s->at = s->frame[s->frame_count * FIELDS + END];
            s->until = s->frame_count ? s->frame[(s->frame_count - 1) * FIELDS + END] : s->sections;
        } else if (next_way(s)) {
            number *frame = s->frame + (s->frame_count - 1) * FIELDS;
            s->at = frame[BEGIN];
            s->until = frame[END];
            s->choice_count = frame[FIRST] + frame[COUNT];
            s->phase = SPLIT;
        } else {
            drop(s);
            if (!jump(s))
                return IMPOSSIBLE;
        }
    }
}
