package enginehost

import (
	"sync"

	"samovar/internal/block"
	"samovar/internal/volume"
)

// slack is how much more than what may be in flight an engine may hold in all: writes that are answered stay with it
// until replicas that only catch up have taken them, and those must not stop clients at once.
const slack = 4

// load is an amount of requests.
type load struct {
	requests int
	bytes    int64
}

func (l *load) add(requests int, bytes int64) {
	l.requests, l.bytes = l.requests+requests, l.bytes+bytes
}

// full tells whether one more request of bytes is too much. One that is larger than the bound is alone.
func (l load) full(bytes int64, most load) bool {
	return l.requests > 0 && (l.requests >= most.requests || l.bytes+bytes > most.bytes)
}

// gate bounds what is in flight (not answered), and what the engine holds in all.
type gate struct {
	mu       sync.Mutex // guards what follows
	room     *sync.Cond
	most     load
	inFlight load
	held     load
	open     bool // nothing is bounded any more: whoever comes is refused further on
}

func newGate(requests int, bytes int64) *gate {
	g := &gate{most: load{requests, bytes}}
	g.room = sync.NewCond(&g.mu)
	return g
}

// memory is what a request takes: trims and zeroes carry nothing, however long they are.
func memory(q *block.Request) int64 {
	if q.Op == block.Read || q.Op == block.Write {
		return int64(min(q.Length, volume.MaxRequest))
	}
	return 0
}

// enter takes room for a request. Without wait it tells whether there is some.
func (g *gate) enter(q *block.Request, wait bool) bool {
	bytes := memory(q)
	all := load{slack * g.most.requests, slack * g.most.bytes}
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.open && (g.inFlight.full(bytes, g.most) || g.held.full(bytes, all)) {
		if !wait {
			return false
		}
		g.room.Wait()
	}
	g.inFlight.add(1, bytes)
	g.held.add(1, bytes)
	return true
}

// answered ends a request's time in flight, dropped the time for which its memory is held.
func (g *gate) answered(q *block.Request) { g.leave(&g.inFlight, memory(q)) }

func (g *gate) dropped(bytes int64) { g.leave(&g.held, bytes) }

func (g *gate) leave(l *load, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.add(-1, -bytes)
	g.room.Broadcast()
}

// end lets everybody through, for good.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	g.room.Broadcast()
}
