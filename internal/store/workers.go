package store

import "sync"

// backend executes operations on data files: Read to Zero, and Reserve. Every operation that it was given ends
// with one call of Replica.finish, or goes on to the sync lane.
type backend interface {
	submit(opList)
	// close waits until everything has ended. Nothing may be submitted after it.
	close()
}

// workers is the backend that uses plain system calls from a bounded set of goroutines, shared by all replicas
// of a pool. They start as they are needed and stay.
type workers struct {
	limit int
	group sync.WaitGroup

	mu      sync.Mutex
	wake    sync.Cond
	waiting opList
	started int
	idle    int
	closed  bool
}

const (
	defaultWorkers = 16
	largestBatch   = 32      // operations that a worker takes at once
	largestMerge   = 1 << 20 // bytes that it writes in one call
)

func newWorkers(limit int) *workers {
	w := &workers{limit: limit}
	w.wake.L = &w.mu
	return w
}

func (w *workers) submit(list opList) {
	w.mu.Lock()
	w.waiting.join(list)
	// One worker for each operation, as far as there are any: disks want depth.
	need := w.waiting.count
	for n := min(need, w.idle); n > 0; n-- {
		w.wake.Signal()
	}
	for need -= w.idle; need > 0 && w.started < w.limit; need-- {
		w.started++
		w.group.Go(w.loop)
	}
	w.mu.Unlock()
}

// load is how many operations wait or are under way, roughly: a worker counts as one.
func (w *workers) load() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting.count + w.started - w.idle
}

func (w *workers) loop() {
	var vector [][]byte
	for {
		batch, ok := w.take()
		if !ok {
			return
		}
		vector = performAll(batch, vector)
	}
}

// take waits for operations. A worker takes its share of what waits, so that none idles while another works
// through a long batch, and follows a run of adjacent writes to its end.
func (w *workers) take() (batch opList, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.waiting.head == nil {
		if w.closed {
			return batch, false
		}
		w.idle++
		w.wake.Wait()
		w.idle--
	}
	share := min(largestBatch, (w.waiting.count+w.limit-1)/w.limit)
	bytes := uint64(0)
	for w.waiting.head != nil {
		if batch.count >= share && !(adjacent(batch.tail, w.waiting.head) && bytes < largestMerge) {
			break
		}
		op := w.waiting.pop()
		bytes += op.Range.Length
		batch.push(op)
	}
	return batch, true
}

func (w *workers) close() {
	w.mu.Lock()
	w.closed = true
	w.wake.Broadcast()
	w.mu.Unlock()
	w.group.Wait()
}

// adjacent tells whether b can be written in one call behind a.
func adjacent(a, b *Op) bool {
	return a.Code == Write && b.Code == Write && !a.FUA && !b.FUA && a.replica == b.replica &&
		a.Range.End() == b.Range.Offset
}

// performAll executes a batch, runs of adjacent writes in one call each. vector is memory to reuse.
func performAll(batch opList, vector [][]byte) [][]byte {
	for op := batch.pop(); op != nil; op = batch.pop() {
		if batch.head == nil || !adjacent(op, batch.head) {
			op.replica.perform(op)
			continue
		}
		run, start, bytes, replica := opList{}, op.Range.Offset, op.Range.Length, op.replica
		run.push(op)
		vector = append(vector[:0], op.Buffer.Bytes())
		for batch.head != nil && bytes < largestMerge && adjacent(run.tail, batch.head) {
			op = batch.pop()
			bytes += op.Range.Length
			run.push(op)
			vector = append(vector, op.Buffer.Bytes())
		}
		err := replica.data.writeVector(vector, int64(start))
		clear(vector)
		for op := run.pop(); op != nil; op = run.pop() {
			if err != nil { // only one of them may be the cause
				replica.perform(op)
			} else {
				replica.finish(op, nil)
			}
		}
	}
	return vector
}

// inline is the backend of a synchronous pool: everything happens inside Submit, in order. Simulators and crash
// tests use it, because it makes runs repeat.
type inline struct{ lane lane }

func newInline() *inline {
	b := &inline{}
	b.lane.start = func(loop func()) { loop() }
	b.lane.run = func(batch opList) { performAll(batch, nil) }
	return b
}

func (b *inline) submit(list opList) {
	b.lane.mu.Lock()
	b.lane.waiting.join(list)
	begin := !b.lane.running
	b.lane.running = true
	b.lane.mu.Unlock()
	if begin {
		b.lane.loop()
	}
}

func (b *inline) close() {}
