package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"samovar/internal/block"
	"samovar/internal/nbd"
)

const (
	blockSize = 4096
	depth     = 16
)

// writer writes blocks that say what they are, over NBD, and remembers which version of each was acknowledged. When
// its connection is lost it goes to the next address; what was in flight then may or may not have happened.
type writer struct {
	addresses []string
	export    string
	from      uint64 // bytes
	pool      *block.Pool
	rng       *rand.Rand

	mu      sync.Mutex // guards what follows
	acked   []uint32   // by block: the version last acknowledged
	tried   []uint32   // by block: the version last sent
	busy    map[uint64]bool
	writes  uint64
	last    time.Time // of the last answer
	longest time.Duration
	node    int // index of the address in use
}

func newWriter(addresses []string, export string, from, size uint64) *writer {
	blocks := size / blockSize
	return &writer{
		addresses: addresses, export: export, from: from, pool: block.NewPool(), rng: rand.New(rand.NewPCG(rand.Uint64(), 1)),
		acked: make([]uint32, blocks), tried: make([]uint32, blocks), busy: map[uint64]bool{},
	}
}

// fill makes the content of a version of a block.
func fill(b []byte, n uint64, version uint32) {
	if version == 0 {
		clear(b)
		return
	}
	x := n<<32 | uint64(version)
	for i := 0; i < len(b); i += 16 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b[i:], n<<32|uint64(version))
		binary.LittleEndian.PutUint64(b[i+8:], x)
	}
}

// run writes until ctx ends.
func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		dial, cancel := context.WithTimeout(ctx, 30*time.Second)
		c, err := nbd.Dial(dial, w.addresses[w.node], w.export)
		cancel()
		if err != nil {
			w.node = (w.node + 1) % len(w.addresses)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		w.session(ctx, c)
		c.Close() // what was in flight has been answered
	}
}

// session writes over one connection until it breaks or ctx ends.
func (w *writer) session(ctx context.Context, c *nbd.Client) {
	room := make(chan struct{}, depth)
	broken := make(chan struct{})
	var once sync.Once
	for {
		select {
		case <-ctx.Done():
		case <-broken:
		case room <- struct{}{}:
			q := w.next()
			n, version := (q.Offset-w.from)/blockSize, w.tried[(q.Offset-w.from)/blockSize]
			q.Done = func(q *block.Request, err error) {
				w.answered(n, version, err)
				q.Data.Release()
				if err != nil {
					once.Do(func() { close(broken) })
				}
				<-room
			}
			c.Submit([]*block.Request{q})
			continue
		}
		for range depth { // wait for what is in flight
			room <- struct{}{}
		}
		return
	}
}

// next picks a block that is not in flight.
func (w *writer) next() *block.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.rng.Uint64N(uint64(len(w.acked)))
	for w.busy[n] {
		n = w.rng.Uint64N(uint64(len(w.acked)))
	}
	w.busy[n] = true
	w.tried[n]++
	q := &block.Request{Op: block.Write, Offset: w.from + n*blockSize, Length: blockSize, Data: w.pool.Get(blockSize)}
	fill(q.Data.Bytes(), n, w.tried[n])
	return q
}

func (w *writer) answered(n uint64, version uint32, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.busy, n)
	if err != nil {
		return
	}
	w.acked[n] = version
	w.writes++
	now := time.Now()
	if !w.last.IsZero() {
		w.longest = max(w.longest, now.Sub(w.last))
	}
	w.last = now
}

func (w *writer) state() (writes uint64, longest time.Duration, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes, w.longest, w.last
}

// verify reads everything back: each block holds the version last acknowledged, or a later one that was sent.
func (w *writer) verify(ctx context.Context, address string) (blocks uint64, err error) {
	c, err := nbd.Dial(ctx, address, w.export)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	const step = 1 << 20
	want := make([]byte, blockSize)
	for off := uint64(0); off < uint64(len(w.acked))*blockSize; off += step {
		done := make(chan error, 1)
		q := &block.Request{Op: block.Read, Offset: w.from + off, Length: step}
		q.Done = func(_ *block.Request, err error) { done <- err }
		c.Submit([]*block.Request{q})
		if err := <-done; err != nil {
			return blocks, err
		}
		for i := uint64(0); i < step; i += blockSize {
			n := (off + i) / blockSize
			got := q.Data.Bytes()[i : i+blockSize]
			found := false
			for version := w.acked[n]; version <= w.tried[n] && !found; version++ {
				fill(want, n, version)
				found = string(got) == string(want)
			}
			if !found {
				return blocks, fmt.Errorf("the block at %d does not hold version %d, which was acknowledged", w.from+n*blockSize, w.acked[n])
			}
			if w.acked[n] > 0 {
				blocks++
			}
		}
		q.Data.Release()
	}
	return blocks, nil
}
