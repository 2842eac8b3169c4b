package replica

import (
	"cmp"
	"slices"

	"samovar/internal/volume"
)

// region is one entry of the dirty-region log.
type region struct {
	last      uint64 // highest ID of this epoch that touched it
	durable   bool   // its entry is on stable storage
	inherited bool   // dirty under an older fence and not yet settled
}

// dirtyLog is the durable set of regions that may not be synced on every in-sync replica.
//
//	absent ──plan──> planned ──LogChange──> durable ──flushed covers last, not inherited──> clean ──drop──> absent
type dirtyLog struct {
	limit     int
	regions   map[uint64]*region
	flushed   uint64          // watermark of this epoch
	inherited int             // regions that are inherited
	adding    []uint64        // planned, not yet on their way to the medium
	leaving   map[uint64]bool // forgotten, but still on the medium until the next change
	changing  bool            // a LogChange is under way
	dropping  bool            // records are being saved for regions about to be dropped
	ages      [4]uint64       // the watermark at the last calls of coldRegions, oldest first
	asked     uint64          // flushed watermark + 1 at the last request for a sync; 0: none
}

func newDirtyLog(limit int, stored []uint64) dirtyLog {
	l := dirtyLog{
		limit: limit, regions: map[uint64]*region{}, leaving: map[uint64]bool{}, inherited: len(stored),
	}
	for _, n := range stored {
		l.regions[n] = &region{durable: true, inherited: true}
	}
	return l
}

// plan takes room for regions [from, to) and notes that id touches them. Beyond the limit only if forced.
func (l *dirtyLog) plan(from, to, id uint64, force bool) bool {
	missing := 0
	for n := from; n < to; n++ {
		if l.regions[n] == nil {
			missing++
		}
	}
	if missing > 0 && len(l.regions)+missing > l.limit && !force {
		return false
	}
	for n := from; n < to; n++ {
		e := l.regions[n]
		if e == nil {
			e = &region{durable: l.leaving[n]}
			l.regions[n] = e
			delete(l.leaving, n)
			if !e.durable {
				l.adding = append(l.adding, n)
			}
		}
		e.last = max(e.last, id)
	}
	return true
}

// durable tells whether all regions [from, to) are on stable storage.
func (l *dirtyLog) durable(from, to uint64) bool {
	for n := from; n < to; n++ {
		if e := l.regions[n]; e == nil || !e.durable {
			return false
		}
	}
	return true
}

func (l *dirtyLog) isClean(e *region) bool { return e.durable && !e.inherited && e.last <= l.flushed }

// flush moves the watermark up.
func (l *dirtyLog) flush(id uint64) { l.flushed = max(l.flushed, id) }

// coldRegions lists what may be forgotten and was not used for a while, in order. Each call is one step of time.
func (l *dirtyLog) coldRegions() []uint64 {
	var out []uint64
	for n, e := range l.regions {
		if l.isClean(e) && e.last <= l.ages[0] {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	copy(l.ages[:], l.ages[1:])
	l.ages[len(l.ages)-1] = l.flushed
	return out
}

// cleanRegions lists what may be forgotten, in order: everything, or the half that was used longest ago.
func (l *dirtyLog) cleanRegions(everything bool) []uint64 {
	var out []uint64
	for n, e := range l.regions {
		if l.isClean(e) {
			out = append(out, n)
		}
	}
	if !everything && len(out) > 1 {
		slices.SortFunc(out, func(a, b uint64) int {
			return cmp.Or(cmp.Compare(l.regions[a].last, l.regions[b].last), cmp.Compare(a, b))
		})
		out = out[:(len(out)+1)/2]
	}
	slices.Sort(out)
	return out
}

// allClean tells whether every region may be forgotten.
func (l *dirtyLog) allClean() bool {
	for _, e := range l.regions {
		if !l.isClean(e) {
			return false
		}
	}
	return len(l.regions) > 0
}

// drop forgets those of regions that are still clean.
func (l *dirtyLog) drop(regions []uint64) {
	for _, n := range regions {
		if e := l.regions[n]; e != nil && l.isClean(e) {
			delete(l.regions, n)
			l.leaving[n] = true
		}
	}
}

// take gathers the next change for the medium, each list in order. No region is in both.
func (l *dirtyLog) take() (add, drop []uint64) {
	add = l.adding
	l.adding = nil
	slices.Sort(add)
	for n := range l.leaving {
		drop = append(drop, n)
	}
	slices.Sort(drop)
	clear(l.leaving)
	return add, drop
}

// added notes that regions are durable now.
func (l *dirtyLog) added(regions []uint64) {
	for _, n := range regions {
		if e := l.regions[n]; e != nil {
			e.durable = true
		}
	}
}

// askSync tells whether a sync should be asked for: once for each state of the watermark.
func (l *dirtyLog) askSync() bool {
	if l.asked == l.flushed+1 {
		return false
	}
	l.asked = l.flushed + 1
	return true
}

// inherit turns every region that is not clean into doubt under a new fence, whose IDs start again.
func (l *dirtyLog) inherit() {
	l.inherited = 0
	for _, e := range l.regions {
		if !l.isClean(e) {
			e.inherited = true
			l.inherited++
		}
		e.last = 0
	}
	l.flushed, l.asked, l.ages = 0, 0, [4]uint64{}
}

// distrust: a sync failed. What was not clean stays dirty until it was rewritten, whatever later syncs say.
func (l *dirtyLog) distrust() {
	for _, e := range l.regions {
		if !e.inherited && !l.isClean(e) {
			e.inherited = true
			l.inherited++
		}
	}
}

// settle ends all inherited doubt: those regions are clean once the flushed watermark covers id.
func (l *dirtyLog) settle(id uint64) {
	for _, e := range l.regions {
		if e.inherited {
			e.inherited = false
			e.last = max(e.last, id)
		}
	}
	l.inherited = 0
}

// dirtyRanges lists the regions that are not clean, merged, within size bytes.
func (l *dirtyLog) dirtyRanges(size uint64) []volume.Range {
	var numbers []uint64
	for n, e := range l.regions {
		if !l.isClean(e) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	var out []volume.Range
	for i := 0; i < len(numbers); {
		j := i + 1
		for j < len(numbers) && numbers[j] == numbers[j-1]+1 {
			j++
		}
		if g := regionRange(numbers[i], numbers[j-1]+1, size); g.Length > 0 {
			out = append(out, g)
		}
		i = j
	}
	return out
}
