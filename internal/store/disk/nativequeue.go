//go:build linux

package disk

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var _ Queues = Native{}

// kernelVector is what the kernel reads of a request with several pieces.
type kernelVector []unix.Iovec

// nativeQueue is a Queue by io_uring. The caller of Submit enters the kernel once for its batch, and for what
// others add meanwhile. One goroutine takes the results; it sleeps in the runtime's poller on the descriptor of
// the ring, because that is the shortest way from the end of a request to a running goroutine: a thread of its
// own, asleep in io_uring_enter, costs a second change of threads for each waking.
type nativeQueue struct {
	done    func(*Request)
	ring    *ring
	file    *os.File // the ring's descriptor, in the poller
	results syscall.RawConn
	reaper  sync.WaitGroup

	mu       sync.Mutex
	empty    sync.Cond
	underWay []*Request // by the number that the kernel gives back; keeps them, and their memory, alive
	free     []uint32   // numbers
	entering bool       // somebody is in io_uring_enter, and will enter again for what is pending
}

// OpenQueue makes an io_uring.
func (Native) OpenQueue(depth int, done func(*Request)) (Queue, error) {
	r, err := openRing(depth)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoQueue, explain(err))
	}
	q := &nativeQueue{done: done, ring: r, underWay: make([]*Request, depth)}
	q.empty.L = &q.mu
	for n := range depth {
		q.free = append(q.free, uint32(n))
	}
	if err = unix.SetNonblock(r.fd, true); err == nil { // else NewFile would leave the poller out
		q.file = os.NewFile(uintptr(r.fd), "io_uring")
		if err = q.file.SetReadDeadline(time.Time{}); err == nil {
			q.results, err = q.file.SyscallConn()
		}
	}
	if err != nil {
		r.unmap()
		if q.file == nil {
			_ = unix.Close(r.fd)
		} else {
			_ = q.file.Close()
		}
		return nil, fmt.Errorf("%w: the ring cannot be waited for: %w", ErrNoQueue, err)
	}
	q.reaper.Go(q.reap)
	return q, nil
}

// explain says what an error of io_uring_setup usually means.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w (the kernel has no io_uring)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (kernel.io_uring_disabled, or the container's seccomp profile, forbids it)", err)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w (perhaps the limit of locked memory, ulimit -l)", err)
	}
	return err
}

func (q *nativeQueue) Submit(batch *Request) {
	q.mu.Lock()
	for r := batch; r != nil; {
		next := r.Next
		n := len(q.free) - 1
		if n < 0 {
			panic("disk: more requests under way than the queue was opened for")
		}
		q.underWay[q.free[n]] = r
		q.ring.push(r.prepare(uint64(q.free[n])))
		q.free = q.free[:n]
		r = next
	}
	if q.entering {
		q.mu.Unlock()
		return
	}
	q.entering = true
	var refused *Request
	for n := q.ring.pending(); n > 0; n = q.ring.pending() {
		q.mu.Unlock()
		err := q.ring.enter(n)
		q.mu.Lock()
		if err != nil && err != unix.EINTR { // the kernel lacks memory, or worse
			for range q.ring.pending() {
				r := q.end(q.ring.takeBack())
				r.Err, r.Next, refused = ErrAgain, refused, r
			}
		}
	}
	q.entering = false
	q.mu.Unlock()
	if refused != nil {
		q.done(refused)
	}
}

// prepare writes a request as the kernel wants it. The addresses stay good: the garbage collector does not move
// memory, and underWay keeps it.
func (r *Request) prepare(number uint64) submission {
	s := submission{fd: int32(r.File.(*nativeFile).fd), user: number}
	r.length = 0
	if r.Code == QueueSync {
		s.opcode, s.opFlags = opFsync, fsyncDataOnly
		return s
	}
	s.offset = uint64(r.Offset)
	if r.Durable {
		s.opFlags = unix.RWF_DSYNC
	}
	if len(r.Pieces) == 1 {
		piece := r.Pieces[0]
		r.length = len(piece)
		s.opcode, s.address, s.length = opWrite, address(&piece[0]), uint32(len(piece))
		if r.Code == QueueRead {
			s.opcode = opRead
		}
		return s
	}
	r.vector = r.vector[:0]
	for _, piece := range r.Pieces {
		r.length += len(piece)
		r.vector = append(r.vector, unix.Iovec{Base: &piece[0], Len: uint64(len(piece))})
	}
	s.opcode, s.address, s.length = opWriteV, address(&r.vector[0]), uint32(len(r.vector))
	return s
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// end forgets a request, with mu held. It is the caller's again.
func (q *nativeQueue) end(number uint64) *Request {
	r := q.underWay[number]
	q.underWay[number] = nil
	if q.free = append(q.free, uint32(number)); len(q.free) == len(q.underWay) {
		q.empty.Broadcast()
	}
	return r
}

// reap hands out results until the queue is closed.
func (q *nativeQueue) reap() {
	_ = q.results.Read(func(uintptr) bool {
		for batch := q.take(); batch != nil; batch = q.take() {
			q.done(batch)
		}
		return false // wait for more
	})
}

// take gathers the requests that ended.
func (q *nativeQueue) take() (batch *Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		c, ok := q.ring.next()
		if !ok {
			return batch
		}
		r := q.end(c.user)
		r.Err = r.outcome(int(c.result))
		clear(r.vector)
		r.Next, batch = batch, r
	}
}

// outcome judges what the kernel answered.
func (r *Request) outcome(result int) error {
	if result >= 0 {
		if result != r.length { // the rest by calls: that is rare, and they tell why
			return ErrAgain
		}
		return nil
	}
	switch err := unix.Errno(-result); err {
	case unix.EAGAIN, unix.EINTR, unix.ENOMEM, // not now
		unix.ECANCELED,               // the thread that submitted it has ended
		unix.EINVAL, unix.EOPNOTSUPP: // perhaps only this way
		return ErrAgain
	default:
		op := map[RequestCode]string{QueueRead: "read", QueueWrite: "write", QueueSync: "fdatasync"}[r.Code]
		return r.File.(*nativeFile).fail(op, err)
	}
}

func (q *nativeQueue) Close() error {
	q.mu.Lock()
	for len(q.free) < len(q.underWay) {
		q.empty.Wait()
	}
	q.mu.Unlock()
	err := q.file.Close() // wakes reap
	q.reaper.Wait()
	q.ring.unmap()
	return err
}
