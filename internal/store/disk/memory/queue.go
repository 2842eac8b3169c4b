package memory

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"samovar/internal/store/disk"
)

var _ disk.Queues = (*FS)(nil)

// queue carries out the requests of a batch within Submit, in an order by the seed. Some it gives back undone or
// half done, with disk.ErrAgain.
type queue struct {
	done  func(*disk.Request)
	depth int

	mu       sync.Mutex
	rng      *rand.Rand
	underWay int
}

// OpenQueue makes a queue if Options.Queue allows it.
func (m *FS) OpenQueue(depth int, done func(*disk.Request)) (disk.Queue, error) {
	if !m.options.Queue {
		return nil, fmt.Errorf("%w on this disk in memory", disk.ErrNoQueue)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// Its own chances: those of the disk stay the same with and without a queue.
	return &queue{done: done, depth: depth, rng: rand.New(rand.NewPCG(uint64(m.steps), 0x77))}, nil
}

func (q *queue) Submit(batch *disk.Request) {
	var list []*disk.Request
	var again []int
	q.mu.Lock()
	for r := batch; r != nil; r = r.Next {
		list = append(list, r)
		again = append(again, q.rng.IntN(20))
	}
	if q.underWay += len(list); q.underWay > q.depth {
		panic("memory: more requests under way than the queue was opened for")
	}
	q.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	parts := 1 + q.rng.IntN(2)
	q.mu.Unlock()
	for part := range parts { // the results come in as many batches
		var ended *disk.Request
		count := 0
		for i := part; i < len(list); i += parts {
			r := list[i]
			r.Err = carryOut(r, again[i])
			r.Next, ended = ended, r
			count++
		}
		if ended == nil {
			continue
		}
		q.mu.Lock()
		q.underWay -= count
		q.mu.Unlock()
		q.done(ended)
	}
}

// carryOut does a request by calls: 0 and 1 are chances to do nothing, or only the first piece.
func carryOut(r *disk.Request, chance int) error {
	if chance == 0 {
		return disk.ErrAgain
	}
	var err error
	switch {
	case r.Code == disk.QueueSync:
		return r.File.Sync()
	case r.Code == disk.QueueRead:
		err = r.File.ReadAt(r.Pieces[0], r.Offset)
	case len(r.Pieces) > 1 && chance > 1:
		return r.File.WriteVector(r.Pieces, r.Offset)
	default:
		err = r.File.WriteAt(r.Pieces[0], r.Offset, r.Durable)
	}
	if err == nil && chance == 1 {
		return disk.ErrAgain
	}
	return err
}

func (q *queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.underWay != 0 {
		panic("memory: a queue is closed with requests under way")
	}
	return nil
}
