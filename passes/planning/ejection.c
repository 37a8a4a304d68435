/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of ejection search, which `ejection.py` describes. All memory is the caller's.
 */
#include <stdint.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;

static const i64 FAR = (i64)1 << 62;
static const i64 FIXED = (i64)1 << 40; /* the weight of what never moves */
static const i64 SLOWEST = 20, FASTEST = 2;
enum { RUN = 8 }; /* sorted by insertion */
static const i64 PENALTY = 3; /* the ejection penalty: what a buffer that ejects others weighs more from then on */

/* One side of the span in which a buffer may not begin for the sake of another, and the weight of that other. */
struct side {
    i64 at, weight, entry;
};

/* A problem, and the state of a search in it; the fields are those of `_POINTERS` and `_NUMBERS` in ejection.py. */
typedef struct {
    const i64 *sizes, *first, *low, *high, *alignments, *first_range, *range_start, *range_end; /* low, high: or null */
    const int32_t *other;
    int32_t *by_low, *by_high; /* the entries of each buffer as they were last sorted */
    i64 *offsets, *weights, *outside, *best;
    struct side *lows, *highs, *scratch;
    i64 count, goal, left, target, height, pace, stale, patience, taken, done;
    u64 random;
} Search;

static i64 draw(Search *s, i64 below) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (i64)((s->random >> 32) * (u64)below >> 32);
}

static i64 lowest(const Search *s, i64 buffer, i64 offset) {
    i64 step = s->alignments[buffer];
    for (i64 r = s->first_range[buffer]; r < s->first_range[buffer + 1]; r++) {
        if (offset > s->range_end[r]) continue;
        i64 place = s->range_start[r];
        if (offset > place) place = step == 1 ? offset : (offset + step - 1) / step * step;
        if (place <= s->range_end[r]) return place;
    }
    return FAR;
}

static i64 highest(const Search *s, i64 buffer, i64 offset) {
    i64 step = s->alignments[buffer];
    for (i64 r = s->first_range[buffer + 1] - 1; r >= s->first_range[buffer]; r--) {
        if (offset < s->range_start[r]) continue;
        i64 place = offset < s->range_end[r] ? offset : s->range_end[r];
        return step == 1 ? place : place / step * step;
    }
    return -1;
}

/* The sides of the span, from the offset of the other, in which an entry of a buffer does not let it begin. */
static i64 low_side(const Search *s, i64 buffer, i64 entry) { return s->low ? s->low[entry] : -s->sizes[buffer]; }
static i64 high_side(const Search *s, i64 entry) { return s->high ? s->high[entry] : s->sizes[s->other[entry]]; }

/* Ascending: runs by insertion, which are merged. */
static void sort(struct side *sides, struct side *scratch, i64 count) {
    for (i64 begin = 0; begin < count; begin += RUN)
        for (i64 next = begin + 1; next < count && next < begin + RUN; next++) {
            struct side one = sides[next];
            i64 at = next;
            for (; at > begin && sides[at - 1].at > one.at; at--) sides[at] = sides[at - 1];
            sides[at] = one;
        }
    for (i64 width = RUN; width < count; width *= 2)
        for (i64 begin = 0; begin + width < count; begin += 2 * width) {
            i64 middle = begin + width, end = middle + width < count ? middle + width : count, left = 0;
            if (sides[middle - 1].at <= sides[middle].at) continue;
            memcpy(scratch, sides + begin, (size_t)width * sizeof *sides);
            for (i64 to = begin, right = middle; left < width;)
                sides[to++] = right < end && sides[right].at < scratch[left].at ? sides[right++] : scratch[left++];
        }
}

/* One side of the spans in which a buffer may not begin, ascending; returns how many spans there are. */
static i64 sides(Search *s, i64 buffer, int is_high, int32_t *order, struct side *found) {
    i64 begin = s->first[buffer], end = s->first[buffer + 1], count = 0, left = 0;
    for (i64 k = begin; k < end; k++) {
        i64 e = order[k], b = s->other[e], offset = s->offsets[b];
        if (offset < 0) {
            s->scratch[left++].entry = e;
            continue;
        }
        found[count++] = (struct side){offset + (is_high ? high_side(s, e) : low_side(s, buffer, e)), s->weights[b], e};
    }
    for (i64 k = 0; k < left; k++) order[begin + count + k] = (int32_t)s->scratch[k].entry;
    sort(found, s->scratch, count);
    for (i64 k = 0; k < count; k++) order[begin + k] = (int32_t)found[k].entry;
    return count;
}

static i64 spans(Search *s, i64 buffer) {
    sides(s, buffer, 0, s->by_low, s->lows);
    return sides(s, buffer, 1, s->by_high, s->highs);
}

/* The place below the target at which least has to leave, and the weight of that; -1 if there is no place. */
static i64 cheapest(Search *s, i64 buffer, i64 *cost) {
    i64 last = highest(s, buffer, s->target - s->sizes[buffer]), at = lowest(s, buffer, 0);
    i64 count = spans(s, buffer);
    i64 opened = 0, closed = 0, low = 0, high = 0, sum = 0, ties = 0, place = -1;
    *cost = FAR;
    while (at <= last) {
        while (opened < count && s->lows[opened].at < at) sum += s->lows[opened++].weight;
        while (closed < count && s->highs[closed].at <= at) sum -= s->highs[closed++].weight;
        if (sum < *cost) {
            *cost = sum;
            place = at;
            ties = 1;
            if (!sum) break;
        } else if (sum == *cost && !draw(s, ++ties)) {
            place = at;
        }
        if (at == last) break;
        i64 next = last, above = 0, below = 0;
        for (; high < count && (above = lowest(s, buffer, s->highs[high].at)) <= at; high++) continue;
        if (high < count && above < next) next = above;
        for (; low < count && (below = highest(s, buffer, s->lows[low].at)) <= at; low++) continue;
        if (low < count && below < next) next = below;
        at = next;
    }
    return place;
}

/* From the best plan again, without what ends above a new target. */
void penstock_restart(Search *s) {
    s->target = s->height - 1 - ((s->height - s->goal) >> s->pace);
    if (s->target < s->goal) s->target = s->goal;
    s->stale = 0;
    s->left = 0;
    memcpy(s->offsets, s->best, (size_t)s->count * sizeof(i64));
    for (i64 b = 0; b < s->count; b++) {
        if (s->weights[b] >= FIXED || (s->offsets[b] >= 0 && s->offsets[b] + s->sizes[b] <= s->target)) continue;
        s->offsets[b] = -1;
        s->outside[s->left++] = b;
    }
}

/* Half of what the weights have come to. */
static void forget(Search *s) {
    for (i64 b = 0; b < s->count; b++)
        if (s->weights[b] < FIXED) s->weights[b] = 1 + s->weights[b] / 2;
}

static void record(Search *s) {
    i64 height = 0;
    for (i64 b = 0; b < s->count; b++)
        if (s->offsets[b] + s->sizes[b] > height) height = s->offsets[b] + s->sizes[b];
    if (height >= s->height) return;
    s->height = height;
    memcpy(s->best, s->offsets, (size_t)s->count * sizeof(i64));
    if (s->pace > FASTEST) s->pace--;
}

/* Go on for a number of steps, or until it is done. */
void penstock_eject(Search *s, i64 steps) {
    for (i64 end = s->taken + steps; s->taken < end;) {
        if (!s->left) {
            record(s);
            if (s->height <= s->goal) s->done = 1;
            if (s->done) return;
            penstock_restart(s);
            if (!s->left) s->done = 1;
            if (s->done) return;
        }
        i64 pick = 0, cost;
        for (i64 at = 1; at < s->left; at++)
            if (s->weights[s->outside[at]] > s->weights[s->outside[pick]]) pick = at;
        i64 buffer = s->outside[pick], place = cheapest(s, buffer, &cost);
        int stuck = place < 0 || cost >= FIXED;
        s->taken++;
        if (stuck || ++s->stale > s->patience) {
            if (stuck && (s->height == FAR || s->target >= s->height - 1)) s->done = 1;
            if (s->done) return;
            if (s->pace < SLOWEST) s->pace++;
            if (!stuck) forget(s);
            penstock_restart(s);
            continue;
        }
        s->outside[pick] = s->outside[--s->left];
        if (cost) {
            s->weights[buffer] += PENALTY;
            for (i64 e = s->first[buffer]; e < s->first[buffer + 1]; e++) {
                i64 b = s->other[e], offset = s->offsets[b];
                if (offset < 0 || offset + low_side(s, buffer, e) >= place || place >= offset + high_side(s, e)) continue;
                s->offsets[b] = -1;
                s->outside[s->left++] = b;
            }
        }
        s->offsets[buffer] = place;
    }
}

/* First fit: all that has no place yet, in an order, at the lowest place that is free; 0 if one finds none. */
int penstock_first_fit(Search *s, const i64 *order) {
    for (i64 at = 0; at < s->count; at++) {
        i64 buffer = order[at], place = lowest(s, buffer, 0);
        if (s->offsets[buffer] >= 0) continue;
        /* a place is free where as many spans have ended as have begun */
        for (i64 count = spans(s, buffer), opened = 0, closed = 0;;) {
            while (closed < count && s->highs[closed].at <= place) closed++;
            while (opened < count && s->lows[opened].at < place) opened++;
            if (opened == closed) break;
            place = lowest(s, buffer, s->highs[closed].at);
        }
        if (place == FAR) return 0;
        s->offsets[buffer] = place;
    }
    return 1;
}
