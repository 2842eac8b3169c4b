package simulation

import (
	"fmt"
	"math"
	"slices"
	"time"

	"samovar/internal/volume"
)

const never = time.Duration(math.MaxInt64)

// register checks that every read of every sector is explained by some order of the writes that fits real time.
//
// For each run of sectors it keeps one candidate for each write that ever touched it and may still matter. A
// candidate took effect no earlier than start (its write was submitted, or a read that returned it began: it was
// the value at some moment after that) and no later than end (acknowledged, or such a read ended). If u.end < v.start
// then u came before v. A register with unique values is linearizable exactly if no two values come before each
// other both ways, so that is all that is checked, at each read and each acknowledgement.
//
// Writes that were never acknowledged may take effect or not. When a newer engine serves, those of older ones have
// happened or never will: the newer engine's start is their end. A loss that is excused (truth.go) makes every write
// possible again that no completed flush put out of reach.
type register struct {
	w       *World
	runs    []sectors
	size    uint64
	writes  []*write // by stamp - firstReal
	writers []*writer
	reads   []time.Duration // beginnings of the reads under way
}

// sectors is a run of sectors with the same history.
type sectors struct {
	from       uint64
	era        time.Duration // of the last excused loss
	candidates []candidate
}

// writer is one engine, as the source of writes.
type writer struct {
	epoch    volume.Epoch
	number   int
	deadline time.Duration // its unfinished writes took effect before, or never
}

// write is one write or zero request.
type write struct {
	stamp  uint64
	zero   bool
	at     volume.Range
	begun  time.Duration
	acked  time.Duration // never, until acknowledged
	void   bool          // refused for lack of space: it must never be seen
	writer *writer
}

type candidate struct {
	write *write
	start time.Duration
	read  time.Duration // earliest end of a read that returned it
	limit time.Duration // after an excused loss: it came before
	// flushed is the latest moment at which it was known to be in place before a flush that was acknowledged was
	// submitted; -1: never. What came before that moment cannot come back after a loss.
	flushed time.Duration
	seen    bool // returned by a read
	unsure  bool // acknowledged, but perhaps lost since
}

func newRegister(w *World, size uint64) *register {
	first := &write{zero: true, begun: -1, acked: 0, at: volume.Range{Length: size}, writer: &writer{deadline: never}}
	return &register{w: w, size: size, runs: []sectors{{candidates: []candidate{
		{write: first, start: -1, read: never, limit: never, flushed: -1},
	}}}}
}

func (r *register) newWriter() *writer {
	e := &writer{number: len(r.writers), deadline: never}
	r.writers = append(r.writers, e)
	return e
}

// end is the latest moment at which a candidate took effect, if it did.
func (c *candidate) end() time.Duration {
	e := min(c.read, c.limit, c.write.writer.deadline)
	if !c.unsure {
		e = min(e, c.write.acked)
	}
	return e
}

// real tells whether a candidate certainly took effect.
func (c *candidate) real() bool { return c.seen || !c.unsure && c.write.acked != never }

// split makes a run begin at offset and gives its index.
func (r *register) split(offset uint64) int {
	i, found := slices.BinarySearchFunc(r.runs, offset, func(s sectors, at uint64) int {
		switch {
		case s.from < at:
			return -1
		case s.from > at:
			return 1
		}
		return 0
	})
	if found || offset >= r.size {
		return i
	}
	right := r.runs[i-1]
	right.from = offset
	right.candidates = slices.Clone(right.candidates)
	r.runs = slices.Insert(r.runs, i, right)
	return i
}

// each calls f for the runs of a range, which is split off exactly.
func (r *register) each(at volume.Range, f func(s *sectors)) {
	i := r.split(at.Offset)
	j := r.split(at.End())
	for ; i < j; i++ {
		f(&r.runs[i])
	}
}

// begin notes a write that is being submitted.
func (r *register) begin(e *writer, at volume.Range, zero bool, now time.Duration) *write {
	w := &write{stamp: uint64(len(r.writes)) + firstReal, zero: zero, at: at, begun: now, acked: never, writer: e}
	r.writes = append(r.writes, w)
	oldest := r.oldestRead()
	r.each(at, func(s *sectors) {
		if len(s.candidates) >= 8 {
			s.prune(oldest)
		}
		s.candidates = append(s.candidates, candidate{write: w, start: now, read: never, limit: never, flushed: -1})
	})
	return w
}

func (r *register) oldestRead() time.Duration {
	oldest := never
	for _, t := range r.reads {
		oldest = min(oldest, t)
	}
	return min(oldest, r.w.now)
}

// prune drops candidates that no read under way can return and no loss can bring back.
func (s *sectors) prune(oldest time.Duration) {
	// Up to the moment cover, all that any but the candidate by put there is overwritten for good.
	cover, second, by := time.Duration(-1), time.Duration(-1), (*write)(nil)
	for i := range s.candidates {
		v := &s.candidates[i]
		switch {
		case !v.real() || v.end() >= oldest:
		case v.flushed > cover:
			cover, second, by = v.flushed, cover, v.write
		default:
			second = max(second, v.flushed)
		}
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(u candidate) bool {
		if u.write == by {
			return u.end() < second
		}
		return u.end() < cover
	})
}

// epochOf tells which epoch's engine made a write.
func (r *register) epochOf(stamp uint64) volume.Epoch {
	if stamp-firstReal >= uint64(len(r.writes)) {
		return 0
	}
	return r.writes[stamp-firstReal].writer.epoch
}

// acknowledge notes that a write was answered with success; warned says when its engine last reported a loss. A write
// that was under way when an excused loss happened may be among what was lost, if its engine could not know better.
func (r *register) acknowledge(w *write, now time.Duration, durable bool, warned time.Duration) {
	if w.writer.deadline < now && r.eraOf(w.at) > w.begun {
		return // of an old engine, and lost since: it may or may not be there
	}
	w.acked = now
	r.each(w.at, func(s *sectors) {
		for i := range s.candidates {
			c := &s.candidates[i]
			if c.write != w {
				continue
			}
			switch {
			case s.era <= w.begun || c.unsure:
			case durable || warned >= s.era:
				c.start = max(c.start, s.era+1) // it was not lost, or it was done again
			case !c.seen:
				c.limit, c.unsure = now, true // it was lost, or it was not
			}
			if durable && !c.unsure {
				c.flushed = max(c.flushed, w.begun)
			}
			r.compare(s, i, never, now)
		}
	})
}

func (r *register) eraOf(at volume.Range) (era time.Duration) {
	r.each(at, func(s *sectors) { era = max(era, s.era) })
	return era
}

// refuse notes that a write failed for lack of space on every replica alike: it has changed nothing.
func (r *register) refuse(w *write) {
	w.void = true
	r.each(w.at, func(s *sectors) {
		for _, c := range s.candidates {
			if c.write == w && c.seen {
				r.w.fail("write #%d of %v was refused for lack of space, but was read before", w.stamp, w.at)
			}
		}
		s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return c.write == w })
	})
}

// compare looks for a candidate that comes both before and after number i, which was just read (since begun) or
// acknowledged (begun: never).
func (r *register) compare(s *sectors, i int, begun, now time.Duration) {
	v := &s.candidates[i]
	if !v.real() {
		return
	}
	end := v.end()
	for j := range s.candidates {
		u := &s.candidates[j]
		if j == i || end >= u.start || !u.real() || u.end() >= v.start {
			continue
		}
		how := "acknowledged"
		if begun != never {
			how = fmt.Sprintf("read from %.6f to %.6f", begun.Seconds(), now.Seconds())
		}
		r.w.fail("history: sectors at %d: %s (%s) contradicts %s", s.from, v, how, u)
	}
}

func (c *candidate) String() string {
	w := c.write
	name := fmt.Sprintf("write #%d", w.stamp)
	if w.zero {
		name = fmt.Sprintf("zero #%d", w.stamp)
	}
	text := func(t time.Duration) string {
		if t == never {
			return "never"
		}
		return fmt.Sprintf("%.6f", t.Seconds())
	}
	return fmt.Sprintf("%s of %d+%d by engine %d [begun %s, acknowledged %s, in place after %s and by %s, seen %v, unsure %v]",
		name, w.at.Offset, w.at.Length, w.writer.number+1, text(w.begun), text(w.acked), text(c.start), text(c.end()), c.seen, c.unsure)
}

// startRead notes that a read begins; finishRead that it ended.
func (r *register) startRead(now time.Duration) { r.reads = append(r.reads, now) }

func (r *register) finishRead(begun time.Duration) {
	if i := slices.Index(r.reads, begun); i >= 0 {
		r.reads = slices.Delete(r.reads, i, i+1)
	}
}

// read checks what a read returned.
func (r *register) read(begun, now time.Duration, pieces []Piece) {
	for _, p := range pieces {
		r.each(p.Range, func(s *sectors) {
			switch {
			case r.w.broken != "":
			case p.Stamp == 0:
				r.readZero(s, begun, now)
			default:
				r.readStamp(s, p.Stamp, begun, now)
			}
		})
	}
}

func (r *register) readStamp(s *sectors, stamp uint64, begun, now time.Duration) {
	for i := range s.candidates {
		c := &s.candidates[i]
		if c.write.stamp != stamp || c.write.zero {
			continue
		}
		if s.era >= begun {
			return // began before a loss: the value of either side is right
		}
		c.start, c.read, c.seen = max(c.start, begun), min(c.read, now), true
		r.compare(s, i, begun, now)
		return
	}
	if s.era < begun {
		r.w.fail("history: sectors at %d: a read from %.6f to %.6f returned write #%d, which cannot be there: %s",
			s.from, begun.Seconds(), now.Seconds(), stamp, r.describe(stamp))
	}
}

func (r *register) describe(stamp uint64) string {
	if stamp < firstReal || stamp-firstReal >= uint64(len(r.writes)) {
		return "it was never written"
	}
	c := candidate{write: r.writes[stamp-firstReal], read: never, limit: never}
	if c.write.void {
		return "it was refused for lack of space"
	}
	return "it was overwritten and flushed, or never here: " + c.String()
}

// readZero checks a read of zeroes. They look alike whoever wrote them, so some candidate must fit; which one is
// noted only if there is but one.
func (r *register) readZero(s *sectors, begun, now time.Duration) {
	if s.era >= begun {
		return
	}
	fits, only := 0, 0
	for i := range s.candidates {
		if s.candidates[i].write.zero && s.zeroFits(i, begun, now) {
			fits, only = fits+1, i
		}
	}
	switch fits {
	case 0:
		r.w.fail("history: sectors at %d: a read from %.6f to %.6f returned zeroes, which no write explains; last: %s",
			s.from, begun.Seconds(), now.Seconds(), &s.candidates[len(s.candidates)-1])
	case 1:
		c := &s.candidates[only]
		c.start, c.read, c.seen = max(c.start, begun), min(c.read, now), true
	}
}

func (s *sectors) zeroFits(i int, begun, now time.Duration) bool {
	v := s.candidates[i]
	v.start, v.read, v.seen = max(v.start, begun), min(v.read, now), true
	for j := range s.candidates {
		u := &s.candidates[j]
		if j != i && u.real() && u.end() < v.start && v.end() < u.start {
			return false
		}
	}
	return true
}

// flush notes that a sync which was submitted at a moment was answered with success: what was in place then is
// safe from any loss.
func (r *register) flush(submitted time.Duration) {
	for k := range r.runs {
		s := &r.runs[k]
		for i := range s.candidates {
			c := &s.candidates[i]
			if c.real() && c.end() < submitted {
				c.flushed = max(c.flushed, min(c.start, submitted))
			}
		}
	}
}

// serve notes that a newer engine serves: unfinished writes of all others have happened or never will.
func (r *register) serve(e *writer, now time.Duration) {
	for _, o := range r.writers {
		if o.epoch != 0 && o.epoch < e.epoch {
			o.deadline = min(o.deadline, now)
		}
	}
}

// lossy notes that writes which no flush covers may be lost: each run holds one of those that no flushed write came
// after, but it is open which.
func (r *register) lossy(now time.Duration) {
	for k := range r.runs {
		s := &r.runs[k]
		kept := make([]candidate, 0, len(s.candidates))
		for i := range s.candidates {
			u := s.candidates[i]
			gone := false
			for j := range s.candidates {
				v := &s.candidates[j]
				gone = gone || j != i && v.real() && u.end() < v.flushed
			}
			if gone {
				continue
			}
			pending := u.write.acked == never && !u.seen && u.write.writer.deadline == never
			if !pending {
				u.start, u.read, u.limit, u.flushed, u.seen, u.unsure = now, never, now, -1, false, true
			}
			kept = append(kept, u)
		}
		s.era, s.candidates = now, kept
		if len(kept) == 1 && kept[0].unsure {
			// Nothing else it could be.
			kept[0].seen, kept[0].read = true, now
		}
	}
}
