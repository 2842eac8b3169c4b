//go:build linux

package disk

import (
	"errors"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"
)

// What the kernel is told: that a durable write is one cannot be seen from outside.
func TestPrepare(t *testing.T) {
	f := &nativeFile{fd: 42, path: "/f"}
	one, two := []byte("abc"), []byte("de")
	for _, test := range []struct {
		request Request
		want    submission
		length  int
	}{
		{Request{Code: QueueRead, Pieces: [][]byte{one}, Offset: 7},
			submission{opcode: opRead, offset: 7, address: address(&one[0]), length: 3}, 3},
		{Request{Code: QueueWrite, Pieces: [][]byte{one}},
			submission{opcode: opWrite, address: address(&one[0]), length: 3}, 3},
		{Request{Code: QueueWrite, Durable: true, Pieces: [][]byte{one}},
			submission{opcode: opWrite, address: address(&one[0]), length: 3, opFlags: unix.RWF_DSYNC}, 3},
		{Request{Code: QueueSync, Offset: 9}, submission{opcode: opFsync, opFlags: fsyncDataOnly}, 0},
	} {
		r := &test.request
		r.File, test.want.fd, test.want.user = f, 42, 5
		if got := r.prepare(5); got != test.want || r.length != test.length {
			t.Errorf("%v: %+v, length %d; want %+v, %d", r.Code, got, r.length, test.want, test.length)
		}
	}
	r := &Request{Code: QueueWrite, Durable: true, File: f, Pieces: [][]byte{one, two}}
	s := r.prepare(5)
	if s.opcode != opWriteV || s.length != 2 || s.opFlags != unix.RWF_DSYNC || r.length != 5 ||
		s.address != address(&r.vector[0]) || r.vector[1] != (unix.Iovec{Base: &two[0], Len: 2}) {
		t.Errorf("%+v, %+v", s, r)
	}
}

func TestOutcome(t *testing.T) {
	r := &Request{Code: QueueWrite, File: &nativeFile{path: "/f"}, length: 8}
	for result, want := range map[int]error{
		8: nil, 7: ErrAgain, 0: ErrAgain, -int(unix.EAGAIN): ErrAgain, -int(unix.EINTR): ErrAgain,
		-int(unix.ECANCELED): ErrAgain, -int(unix.EOPNOTSUPP): ErrAgain, -int(unix.EIO): unix.EIO, -int(unix.ENOSPC): unix.ENOSPC,
	} {
		got := r.outcome(result)
		var named *fs.PathError
		if !errors.Is(got, want) || errors.As(got, &named) && named.Path != "/f" {
			t.Errorf("%d: %v, want %v", result, got, want)
		}
	}
}

// A kernel that takes no requests costs the queue, not the requests.
func TestKernelRefuses(t *testing.T) {
	ended := 0
	queue, err := Native{}.OpenQueue(4, func(batch *Request) {
		for r := batch; r != nil; r = r.Next {
			if ended++; r.Err != ErrAgain {
				t.Errorf("%v", r.Err)
			}
		}
	})
	if err != nil {
		t.Skip(err)
	}
	q := queue.(*nativeQueue)
	fd := q.ring.fd
	q.ring.fd = -1
	f := &nativeFile{fd: -1}
	for range 3 {
		second := &Request{Code: QueueSync, File: f}
		q.Submit(&Request{Code: QueueSync, File: f, Next: second})
	}
	q.ring.fd = fd
	if ended != 6 {
		t.Fatalf("%d requests ended, want 6", ended)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}
