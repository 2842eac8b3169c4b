package simulation

import (
	"testing"
	"time"

	"samovar/internal/volume"
)

// history is a hand-made run of events for the register: each step says when and what.
type history struct {
	w       *World
	writes  map[string]*write
	engines map[string]*writer
	warned  time.Duration
}

func (h *history) warn(ms int) *history {
	h.warned = at(ms)
	return h
}

func newHistory() *history {
	w := &World{}
	w.register = newRegister(w, 1<<20)
	return &history{w: w, writes: map[string]*write{}, engines: map[string]*writer{}}
}

func at(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }

var all = volume.Range{Length: 4096}

func (h *history) engine(name string) *writer {
	e := h.engines[name]
	if e == nil {
		e = h.w.register.newWriter()
		e.epoch = volume.Epoch(len(h.engines) + 1)
		h.engines[name] = e
	}
	return e
}

func (h *history) write(ms int, engine, name string) *history {
	return h.begin(ms, engine, name, false)
}
func (h *history) zero(ms int, engine, name string) *history { return h.begin(ms, engine, name, true) }

func (h *history) begin(ms int, engine, name string, zero bool) *history {
	h.w.now = at(ms)
	h.writes[name] = h.w.register.begin(h.engine(engine), all, zero, at(ms))
	return h
}

func (h *history) ack(ms int, name string) *history {
	h.w.now = at(ms)
	h.w.register.acknowledge(h.writes[name], at(ms), false, h.warned)
	return h
}

func (h *history) fua(ms int, name string) *history {
	h.w.now = at(ms)
	h.w.register.acknowledge(h.writes[name], at(ms), true, h.warned)
	return h
}

func (h *history) refuse(ms int, name string) *history {
	h.w.now = at(ms)
	h.w.register.refuse(h.writes[name])
	return h
}

func (h *history) sync(from, to int) *history {
	h.w.now = at(to)
	h.w.register.flush(at(from))
	return h
}

func (h *history) serve(ms int, engine string) *history {
	h.w.now = at(ms)
	h.w.register.serve(h.engine(engine), at(ms))
	return h
}

func (h *history) lossy(ms int) *history {
	h.w.now = at(ms)
	h.w.register.lossy(at(ms))
	return h
}

// read returns the value of a write; "" is zeroes.
func (h *history) read(from, to int, name string) *history { return h.readAt(all, from, to, name) }

func (h *history) readAt(r volume.Range, from, to int, name string) *history {
	h.w.now = at(to)
	p := Piece{Range: r}
	if name != "" {
		p.Stamp = h.writes[name].stamp
	}
	h.w.register.read(at(from), at(to), []Piece{p})
	return h
}

func TestHistories(t *testing.T) {
	two := func() *history { // two acknowledged writes, one after the other
		return newHistory().serve(1, "a").write(10, "a", "x").ack(20, "x").write(30, "a", "y").ack(40, "y")
	}
	half := func() *history { // an acknowledged write, one that was never answered, a new engine
		return newHistory().serve(1, "a").write(10, "a", "x").ack(20, "x").write(30, "a", "y").serve(100, "b")
	}
	cases := []struct {
		name string
		h    *history
		good bool
	}{
		{"nothing written", newHistory().read(1, 2, ""), true},
		{"the last write", two().read(50, 60, "y"), true},
		{"a stale read", two().read(50, 60, "x"), false},
		{"lost before the first write", two().read(50, 60, ""), false},
		{"a read beside the write may see either", newHistory().write(10, "a", "x").read(5, 15, "x").read(12, 30, "x"), true},
		{"new then old beside a pending write", newHistory().write(10, "a", "x").ack(11, "x").write(12, "a", "y").
			read(13, 14, "y").read(15, 16, "x"), false},
		{"old then new beside a pending write", newHistory().write(10, "a", "x").ack(11, "x").write(12, "a", "y").
			read(13, 14, "x").read(15, 16, "y"), true},
		{"two writes at once, either may win", newHistory().write(10, "a", "x").write(11, "a", "y").ack(20, "x").ack(21, "y").
			read(30, 31, "x").read(40, 41, "x"), true},
		{"two writes at once, but the winner stays", newHistory().write(10, "a", "x").write(11, "a", "y").ack(20, "x").ack(21, "y").
			read(30, 31, "x").read(40, 41, "y"), false},
		{"an unanswered write happened", half().read(110, 111, "y").read(120, 121, "y"), true},
		{"an unanswered write did not happen", half().read(110, 111, "x").read(120, 121, "x"), true},
		{"it happened, then not", half().read(110, 111, "y").read(120, 121, "x"), false},
		{"it did not happen, then it did", half().read(110, 111, "x").read(120, 121, "y"), false},
		{"it did not happen, other sectors may differ", half().readAt(volume.Range{Length: 512}, 110, 111, "x").
			readAt(volume.Range{Offset: 512, Length: 512}, 120, 121, "y"), true},
		{"in its own epoch it may still come", newHistory().serve(1, "a").write(10, "a", "x").ack(20, "x").write(30, "a", "y").
			read(40, 41, "x").read(50, 51, "y"), true},
		{"overwritten, it cannot come back", half().write(110, "b", "z").ack(120, "z").read(130, 131, "y"), false},
		{"acknowledged late, so it happened", half().read(110, 111, "y").ack(120, "y").read(130, 131, "y"), true},
		{"acknowledged late, though read as lost", half().read(110, 111, "x").ack(120, "y"), false},
		{"a loss may undo what was not flushed", two().sync(25, 28).lossy(100).read(110, 111, "x"), true},
		{"a loss may keep it", two().sync(25, 28).lossy(100).read(110, 111, "y"), true},
		{"a loss cannot undo what was flushed", two().sync(50, 60).lossy(100).read(110, 111, "x"), false},
		{"a sync covers only what was answered before it", two().sync(35, 60).lossy(100).read(110, 111, "x"), true},
		{"a loss cannot undo write-through", newHistory().write(10, "a", "x").ack(20, "x").write(30, "a", "y").fua(40, "y").
			lossy(100).read(110, 111, "x"), false},
		{"older than what was flushed", two().sync(25, 28).lossy(100).read(110, 111, ""), false},
		{"lost while its answer was on the way", newHistory().write(10, "a", "x").ack(20, "x").write(30, "a", "y").lossy(40).
			ack(41, "y").read(50, 51, "x"), true},
		{"acknowledged although its loss was known", newHistory().write(10, "a", "x").ack(20, "x").write(30, "a", "y").
			lossy(40).warn(45).ack(50, "y").read(60, 61, "x"), false},
		{"write-through whose answer was on the way", newHistory().write(10, "a", "x").ack(20, "x").write(30, "a", "y").
			lossy(40).fua(41, "y").read(50, 51, "x"), false},
		{"after a loss values do not flip", two().lossy(100).read(110, 111, "x").read(120, 121, "y"), false},
		{"after a second loss they may", two().lossy(100).read(110, 111, "x").lossy(200).read(210, 211, "y"), true},
		{"unless a sync came between", two().lossy(100).read(110, 111, "x").sync(120, 121).lossy(200).read(210, 211, "y"), false},
		{"without a loss flushed or not is all one", two().read(110, 111, "x"), false},
		{"zeroes explained by a zero", newHistory().write(10, "a", "x").ack(20, "x").zero(30, "a", "z").ack(40, "z").
			read(50, 51, ""), true},
		{"zeroes before the zero", newHistory().write(10, "a", "x").ack(20, "x").read(50, 51, "").zero(60, "a", "z"), false},
		{"old data after a zero", newHistory().write(10, "a", "x").ack(20, "x").zero(30, "a", "z").ack(40, "z").
			read(50, 51, "x"), false},
		{"refused for lack of space and not there", newHistory().write(10, "a", "x").ack(20, "x").write(30, "a", "y").
			refuse(40, "y").read(50, 51, "x"), true},
		{"refused for lack of space, yet there", newHistory().write(10, "a", "x").ack(20, "x").write(30, "a", "y").
			refuse(40, "y").read(50, 51, "y"), false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.h.w.broken; (got == "") != c.good {
				t.Errorf("good %v, but the checker says %q", c.good, got)
			}
		})
	}
}

// Pruning may not change a verdict: many overwrites, then a resurrection.
func TestPruning(t *testing.T) {
	h := newHistory().serve(1, "a")
	names := []string{}
	for i := range 60 {
		name := string(rune('A' + i))
		names = append(names, name)
		h.write(10+10*i, "a", name).ack(11+10*i, name).sync(12+10*i, 13+10*i)
	}
	if n := len(h.w.register.runs[0].candidates); n > 16 {
		t.Errorf("%d candidates are kept", n)
	}
	last := names[len(names)-1]
	if h.read(1000, 1001, last); h.w.broken != "" {
		t.Error(h.w.broken)
	}
	if h.read(1002, 1003, names[3]); h.w.broken == "" {
		t.Error("an old value came back unseen")
	}
}
