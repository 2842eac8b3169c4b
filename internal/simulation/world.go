package simulation

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"samovar/internal/volume"
)

// event is something that will happen at a moment of the world's time.
type event struct {
	at   time.Duration
	turn uint64 // order among events of one moment
	run  func()
}

// World holds everything of one run: time, chance, machines, network, cluster store, checkers.
type World struct {
	rng  *rand.Rand
	now  time.Duration // true time; no machine sees it
	heap []event
	turn uint64

	hash   uint64
	events uint64
	trace  io.Writer
	broken string // the first rule that was seen broken

	profile  profile
	config   Config
	machines []*machine
	links    [][]link
	copyCuts map[[2]int]bool // pairs of machines whose replicas cannot reach each other; looked up only
	conns    []*conn
	store    *store
	register *register
	truth    *truth
	faults   *faults
	control  *control

	volume   volume.ID
	sessions uint64 // last session number given out
	calm     bool   // faults have stopped
	stats    Stats
}

// after plans an event.
func (w *World) after(d time.Duration, run func()) { w.plan(w.now+max(d, 0), run) }

func (w *World) plan(at time.Duration, run func()) {
	w.turn++
	w.heap = append(w.heap, event{at: at, turn: w.turn, run: run})
	h := w.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 4
		if !before(&h[i], &h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.turn < b.turn }

func (w *World) next() event {
	h := w.heap
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	w.heap = h
	for i := 0; ; {
		least := i
		for c := 4*i + 1; c < min(4*i+5, last); c++ {
			if before(&h[c], &h[least]) {
				least = c
			}
		}
		if least == i {
			return top
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// step runs one event; false when nothing is left or a rule was broken.
func (w *World) step() bool {
	if len(w.heap) == 0 || w.broken != "" {
		return false
	}
	e := w.next()
	w.now = e.at
	w.events++
	if w.events > maxEvents {
		w.fail("no end in sight: %d events", w.events)
		return false
	}
	e.run()
	return w.broken == ""
}

// maxEvents stops a world in which something goes round in a circle.
const maxEvents = 3_000_000

// runUntil lets the world go on until done says so or the time is over, and tells which.
func (w *World) runUntil(limit time.Duration, done func() bool) bool {
	end := w.now + limit
	for w.broken == "" {
		if done() {
			return true
		}
		if len(w.heap) == 0 || w.heap[0].at > end {
			w.now = end
			return done()
		}
		w.step()
	}
	return false
}

// fail notes that a rule was seen broken; the first one counts.
func (w *World) fail(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		w.log("BROKEN %s", w.broken)
	}
}

// mix puts numbers into the hash that tells two runs apart.
func (w *World) mix(a, b, c uint64) {
	h := w.hash ^ uint64(w.now)
	for _, v := range [...]uint64{a, b, c} {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	w.hash = h
}

// log writes a line of the trace. Callers on hot paths ask tracing first: the arguments are not free.
func (w *World) log(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%11.6f ", w.now.Seconds())
		fmt.Fprintf(w.trace, format, args...)
		fmt.Fprintln(w.trace)
	}
}

func (w *World) tracing() bool { return w.trace != nil }

// chance is true with probability p.
func (w *World) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between draws a duration evenly.
func (w *World) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

// around draws a duration with many short and a few long values.
func (w *World) around(mean time.Duration) time.Duration {
	return time.Duration(float64(mean) * min(w.rng.ExpFloat64(), 8))
}

// identity draws 128 bits.
func (w *World) identity() (id [16]byte) {
	a, b := w.rng.Uint64(), w.rng.Uint64()|1
	for i := range 8 {
		id[i], id[8+i] = byte(a>>(8*i)), byte(b>>(8*i))
	}
	return id
}
