package store

import (
	"sync"

	"samovar/internal/store/disk"
)

// queued is the backend that gives reads and writes to a queue of the disk, a whole batch in one call. What the
// queue cannot do goes to others, a backend of plain calls: edges of blocks, holes, reservations; what the queue
// gives back; and, unless all is set, files in the page cache (there the kernel starts threads of its own) and
// requests that are nearly alone, where a call on a thread that sleeps in it is the shortest way.
//
// There is one queue for a pool, not one for a replica: it is one disk whose depth is shared, results of all
// volumes come with one waking, and a node with many volumes has few rings. Syncs stay with the lanes: the
// kernel hands an fdatasync to a thread of its own, so a ring only makes the way longer.
type queued struct {
	queue   disk.Queue
	others  backend
	load    func() int // operations that others has
	all     bool
	flights []flight // by the tags of their requests

	mu       sync.Mutex
	free     *flight
	waiting  opList // for a flight
	underWay int    // flights
	deep     int    // operations for which the load still counts as deep
}

// flight is one request, with the operations whose bytes it carries: one, or adjacent writes.
type flight struct {
	request disk.Request
	run     opList
	next    *flight // free
}

const (
	queueDepth  = 256 // requests under way on a pool
	queueFewest = 6   // operations under way from which the queue is the better way: measured, docs/performance.md
	queueLinger = 64  // operations
)

func newQueued(q disk.Queues, others backend, load func() int, all bool) (*queued, error) {
	b := &queued{others: others, load: load, all: all, flights: make([]flight, queueDepth)}
	for i := range b.flights {
		f := &b.flights[i]
		f.request.Tag, f.next, b.free = i, b.free, f
	}
	var err error
	b.queue, err = q.OpenQueue(queueDepth, b.landed)
	return b, err
}

func (b *queued) submit(list opList) {
	var first, second opList // for the queue, for the others
	for op := list.pop(); op != nil; op = list.pop() {
		if !b.takes(op) {
			second.push(op)
			continue
		}
		if op.Code == Write && op.FUA {
			if err := op.replica.SyncLoss(); err != nil {
				op.replica.finish(op, err)
				continue
			}
		}
		first.push(op)
	}
	if second.head != nil {
		b.others.submit(second)
	}
	if first.head == nil {
		return
	}
	load := 0
	if !b.all && first.count < queueFewest {
		load = b.load()
	}
	b.mu.Lock()
	if !b.all && b.shallow(first.count, first.count+load+b.underWay) {
		b.mu.Unlock()
		b.others.submit(first)
		return
	}
	b.waiting.join(first)
	batch := b.board()
	b.mu.Unlock()
	if batch != nil {
		b.queue.Submit(batch)
	}
}

// shallow tells whether new operations are better off with calls, for so few are under way with them; mu is held.
// A load that was deep a moment ago counts as deep: between two of its batches there may be nothing under way.
func (b *queued) shallow(count, underWay int) bool {
	if underWay >= queueFewest {
		b.deep = queueLinger
		return false
	}
	b.deep = max(b.deep-count, 0)
	return b.deep == 0
}

// takes tells whether the queue can do an operation. A durable write through the page cache takes two steps
// (Replica.write).
func (b *queued) takes(op *Op) bool {
	data := &op.replica.data
	return (op.Code == Read || op.Code == Write) && (data.limits.Direct || b.all && (op.Code == Read || !op.FUA)) &&
		data.fits(op.Buffer.Bytes(), int64(op.Range.Offset))
}

// board puts operations that wait on free flights, with mu held. Adjacent writes share one.
func (b *queued) board() (batch *disk.Request) {
	var last *disk.Request
	for b.waiting.head != nil && b.free != nil {
		op := b.waiting.pop()
		f := b.free
		b.free, f.next = f.next, nil
		b.underWay++
		r := &f.request
		if r.Next = nil; op.Code == Read {
			r.Code, r.Durable = disk.QueueRead, false
		} else {
			r.Code, r.Durable = disk.QueueWrite, op.FUA
		}
		r.File, r.Offset = op.replica.data.file, int64(op.Range.Offset)
		r.Pieces = append(r.Pieces[:0], op.Buffer.Bytes())
		bytes := op.Range.Length
		f.run.push(op)
		for b.waiting.head != nil && bytes < largestMerge && len(r.Pieces) < disk.LargestVector &&
			adjacent(f.run.tail, b.waiting.head) {
			op = b.waiting.pop()
			bytes += op.Range.Length
			r.Pieces = append(r.Pieces, op.Buffer.Bytes())
			f.run.push(op)
		}
		if last == nil {
			batch = r
		} else {
			last.Next = r
		}
		last = r
	}
	return batch
}

// landed ends the operations of requests that are done, and lets others take their places.
func (b *queued) landed(batch *disk.Request) {
	var free *flight
	count := 0
	for r := batch; r != nil; {
		f, next := &b.flights[r.Tag], r.Next
		b.end(f)
		clear(r.Pieces)
		r.Next, r.File = nil, nil
		f.next, free = free, f
		count++
		r = next
	}
	b.mu.Lock()
	for free != nil {
		f := free
		free, f.next, b.free = f.next, b.free, f
	}
	b.underWay -= count
	next := b.board()
	b.mu.Unlock()
	if next != nil {
		b.queue.Submit(next)
	}
}

// end finishes the operations of a flight, or has them repeated by calls. A failed run is repeated one by one,
// since only one of its operations may be the cause; a failed single is not: a durable write that succeeds
// behind one that failed may have lost what the first reported.
func (b *queued) end(f *flight) {
	run, err := f.run, f.request.Err
	f.run = opList{}
	if err == disk.ErrAgain || err != nil && run.count > 1 {
		b.others.submit(run)
		return
	}
	for op := run.pop(); op != nil; op = run.pop() {
		if op.Code == Write && op.FUA {
			if err = op.replica.wroteDurably(err); err == nil {
				err = op.replica.SyncLoss() // learned meanwhile
			}
		}
		op.replica.finish(op, err)
	}
}

func (b *queued) close() {
	_ = b.queue.Close()
	b.others.close()
}
