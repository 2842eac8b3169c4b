package disk_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"

	"samovar/internal/block"
	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
)

// The suite for disk.Queue, on every implementation.
func TestQueues(t *testing.T) {
	tests := map[string]func(*testing.T, disk.FS, string){
		"requests": checkRequests, "random": checkRandom, "errors": checkErrors, "close": checkQueueClose,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Run("native", func(t *testing.T) { test(t, disk.Native{}, t.TempDir()) })
			t.Run("tmpfs", func(t *testing.T) {
				dir, err := os.MkdirTemp("/dev/shm", "disk")
				if err != nil {
					t.Skip(err)
				}
				defer os.RemoveAll(dir)
				test(t, disk.Native{}, dir)
			})
			t.Run("memory", func(t *testing.T) { test(t, memory.New(1, memory.Options{Queue: true}), "/") })
		})
	}
}

// waited is a queue whose requests a test waits for.
type waited struct {
	disk.Queue
	t    *testing.T
	mu   sync.Mutex
	wait map[*disk.Request]chan struct{}
}

func openQueue(t *testing.T, fsys disk.FS, depth int) *waited {
	t.Helper()
	w := &waited{t: t, wait: map[*disk.Request]chan struct{}{}}
	q, err := fsys.(disk.Queues).OpenQueue(depth, func(batch *disk.Request) {
		for r := batch; r != nil; {
			next := r.Next
			w.mu.Lock()
			done := w.wait[r]
			delete(w.wait, r)
			w.mu.Unlock()
			close(done)
			r = next
		}
	})
	if errors.Is(err, disk.ErrNoQueue) {
		t.Skip(err)
	}
	must(t, err)
	w.Queue = q
	return w
}

// do carries out a batch; what the queue gives back it does by calls.
func (w *waited) do(requests ...*disk.Request) []error {
	errs := make([]error, len(requests))
	done := make([]chan struct{}, len(requests))
	for i, r := range requests {
		r.Next = nil
		if i > 0 {
			requests[i-1].Next = r
		}
		done[i] = make(chan struct{})
		w.mu.Lock()
		w.wait[r] = done[i]
		w.mu.Unlock()
	}
	w.Submit(requests[0])
	for i, r := range requests {
		<-done[i]
		if errs[i] = r.Err; r.Err == disk.ErrAgain {
			errs[i] = byCalls(r)
		}
	}
	return errs
}

func byCalls(r *disk.Request) error {
	switch {
	case r.Code == disk.QueueRead:
		return r.File.ReadAt(r.Pieces[0], r.Offset)
	case r.Code == disk.QueueSync:
		return r.File.Sync()
	case r.Durable:
		return r.File.WriteAt(r.Pieces[0], r.Offset, true)
	}
	return r.File.WriteVector(r.Pieces, r.Offset)
}

func checkRequests(t *testing.T, fsys disk.FS, dir string) {
	q := openQueue(t, fsys, 8)
	f, err := fsys.Open(dir+"/f", disk.Create)
	must(t, err)
	defer f.Close()
	for _, err := range q.do(
		&disk.Request{Code: disk.QueueWrite, File: f, Pieces: [][]byte{[]byte("hello")}, Durable: true},
		&disk.Request{Code: disk.QueueWrite, File: f, Offset: 5, Pieces: [][]byte{[]byte(", "), []byte("big "), []byte("world")}},
	) {
		must(t, err)
	}
	must(t, q.do(&disk.Request{Code: disk.QueueSync, File: f})[0])
	got := make([]byte, 16)
	must(t, q.do(&disk.Request{Code: disk.QueueRead, File: f, Pieces: [][]byte{got}})[0])
	if string(got) != "hello, big world" {
		t.Fatalf("read %q", got)
	}
	many := make([][]byte, disk.LargestVector)
	for i := range many {
		many[i] = []byte{byte(i), byte(i >> 8)}
	}
	must(t, q.do(&disk.Request{Code: disk.QueueWrite, File: f, Offset: 100, Pieces: many})[0])
	got = make([]byte, 2*len(many))
	must(t, f.ReadAt(got, 100))
	if !bytes.Equal(got, bytes.Join(many, nil)) {
		t.Fatal("the vector differs")
	}
	must(t, q.Close())
}

// checkRandom compares a full queue, also past the page cache, with a plain slice.
func checkRandom(t *testing.T, fsys disk.FS, dir string) {
	const depth, unit, span = 16, 4096, 64
	q := openQueue(t, fsys, depth)
	f, err := fsys.Open(dir+"/f", disk.Create|disk.Direct)
	if errors.Is(err, disk.ErrNoDirect) {
		f, err = fsys.Open(dir+"/f", disk.Create)
	}
	must(t, err)
	defer f.Close()
	must(t, f.SetSize(span*unit))
	rng, twin, pool := rand.New(rand.NewPCG(5, 5)), make([]byte, span*unit), block.NewPool()
	for round := range 100 {
		var batch []*disk.Request
		for _, place := range rng.Perm(span)[:1+rng.IntN(depth)] {
			b := pool.Get(unit)
			r := &disk.Request{Code: disk.QueueRead, File: f, Offset: int64(place) * unit, Pieces: [][]byte{b.Bytes()}}
			if rng.IntN(2) == 0 {
				r.Code, r.Durable = disk.QueueWrite, rng.IntN(8) == 0
				for i := range r.Pieces[0] {
					r.Pieces[0][i] = byte(round + place)
				}
				copy(twin[r.Offset:], r.Pieces[0])
			}
			batch = append(batch, r)
		}
		for i, err := range q.do(batch...) {
			must(t, err)
			if at := batch[i].Offset; !bytes.Equal(batch[i].Pieces[0], twin[at:at+unit]) {
				t.Fatalf("round %d: block at %d differs", round, at)
			}
		}
	}
	must(t, q.Close())
}

// checkErrors: an error is that of one request.
func checkErrors(t *testing.T, fsys disk.FS, dir string) {
	q := openQueue(t, fsys, 8)
	f, err := fsys.Open(dir+"/f", disk.Create)
	must(t, err)
	must(t, f.WriteAt([]byte("0123456789"), 0, false))
	reader, err := fsys.Open(dir+"/f", disk.ReadOnly)
	must(t, err)
	got, behind := make([]byte, 10), make([]byte, 10)
	errs := q.do(
		&disk.Request{Code: disk.QueueRead, File: f, Pieces: [][]byte{got}},
		&disk.Request{Code: disk.QueueRead, File: f, Offset: 5, Pieces: [][]byte{behind}},
		&disk.Request{Code: disk.QueueWrite, File: f, Offset: 10, Pieces: [][]byte{[]byte("x")}},
	)
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Fatalf("errors %v", errs)
	}
	if _, native := fsys.(disk.Native); native {
		errs = q.do(
			&disk.Request{Code: disk.QueueWrite, File: reader, Pieces: [][]byte{[]byte("y")}},
			&disk.Request{Code: disk.QueueSync, File: f},
		)
		var named *fs.PathError
		if !errors.Is(errs[0], syscall.EBADF) || !errors.As(errs[0], &named) || named.Path != dir+"/f" || errs[1] != nil {
			t.Fatalf("errors %v", errs)
		}
	}
	must(t, reader.Close())
	must(t, q.Close())
	must(t, f.Close())
}

// checkQueueClose: Close waits, done may submit, and nobody leaves the depth.
func checkQueueClose(t *testing.T, fsys disk.FS, dir string) {
	f, err := fsys.Open(dir+"/f", disk.Create)
	must(t, err)
	defer f.Close()
	var mu sync.Mutex
	left, ended := 200, 0
	var q disk.Queue
	ready := make(chan struct{})
	q, err = fsys.(disk.Queues).OpenQueue(4, func(batch *disk.Request) {
		<-ready
		for r := batch; r != nil; {
			next := r.Next
			r.Next = nil
			mu.Lock()
			ended++
			left--
			more := left >= 0
			mu.Unlock()
			if more {
				q.Submit(r)
			}
			r = next
		}
	})
	if errors.Is(err, disk.ErrNoQueue) {
		t.Skip(err)
	}
	must(t, err)
	close(ready)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			q.Submit(&disk.Request{Code: disk.QueueWrite, File: f, Offset: int64(i), Pieces: [][]byte{{byte(i)}}})
		})
	}
	group.Wait()
	for {
		mu.Lock()
		stop := left <= -4
		mu.Unlock()
		if stop {
			break
		}
	}
	must(t, q.Close())
	if ended != 204 {
		t.Fatalf("%d ended, want 204", ended)
	}
}
