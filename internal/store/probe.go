package store

import (
	"bytes"
	"errors"
	"fmt"
	"path"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
)

// Back ends of a pool's data I/O, for Options.Backend; Info tells which of BackendURing and BackendPool runs.
const (
	BackendAuto  = "auto"  // uring where the disk is good for it, else pool; what is better, request by request
	BackendURing = "uring" // everything that can go through the ring does, or the pool is not opened: for tests
	BackendPool  = "pool"  // calls from a bounded set of goroutines
)

// chooseBackend decides how a pool's data reaches the disk, and says why.
func (p *Pool) chooseBackend() error {
	o := p.options
	var calls backend
	load := func() int { return 0 }
	if o.Synchronous {
		calls = newInline()
	} else {
		w := newWorkers(o.Workers)
		calls, load = w, w.load
	}
	p.backend, p.backendName = calls, BackendPool
	queues, able := p.fs.(disk.Queues)
	switch {
	case o.Backend == BackendPool:
		p.backendReason = "it was asked for"
	case o.Backend == BackendAuto && o.Synchronous:
		p.backendReason = "the pool is synchronous"
	case o.Backend == BackendAuto && o.Buffered:
		p.backendReason = "direct I/O is switched off"
	case !able:
		p.backendReason = "the file system has no queues"
	default:
		reason, err := p.probeQueue(queues)
		var q *queued
		if err == nil {
			q, err = newQueued(queues, calls, load, o.Backend == BackendURing)
		}
		if err == nil {
			p.backend, p.backendName, p.backendReason = q, BackendURing, reason
		} else {
			p.backendReason = err.Error()
		}
	}
	if o.Backend == BackendURing && p.backendName != BackendURing {
		calls.close()
		return fault.New(fault.Invalid, "open pool "+p.identity.Name,
			"the back end uring was asked for and cannot be used ("+p.backendReason+"); choose auto")
	}
	o.Logger.Info("data back end", "pool", p.identity.Name, "backend", p.backendName, "reason", p.backendReason)
	return nil
}

// probeName is a file that probeQueue makes and removes. A crash may leave it; it counts for nothing.
const probeName = "probe" + temporary

const probeTries = 5 // of a request that the queue gives back

// probeQueue tries every kind of request that the store relies on, on a scratch file in the pool.
func (p *Pool) probeQueue(queues disk.Queues) (reason string, err error) {
	name := path.Join(p.dir, probeName)
	defer func() { _ = p.fs.Remove(name) }()
	file, err := p.fs.Open(name, disk.Create|disk.Direct)
	if errors.Is(err, disk.ErrNoDirect) && p.options.Backend == BackendURing {
		file, err = p.fs.Open(name, disk.Create)
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	ended := make(chan *disk.Request, 1)
	queue, err := queues.OpenQueue(1, func(r *disk.Request) { ended <- r })
	if err != nil {
		return "", err
	}
	defer queue.Close()
	buffer := p.buffers.Get(int(max(4096, file.Limits().Offset)))
	defer buffer.Release()
	b := buffer.Bytes()
	fill := func(c byte) {
		for i := range b {
			b[i] = c
		}
	}
	fill(0x5a)
	r := &disk.Request{File: file, Pieces: [][]byte{b}}
	for _, step := range []disk.Request{
		{Code: disk.QueueWrite}, {Code: disk.QueueWrite, Durable: true}, {Code: disk.QueueSync}, {Code: disk.QueueRead},
	} {
		if r.Code, r.Durable = step.Code, step.Durable; r.Code == disk.QueueRead {
			fill(0)
		}
		for tries := 0; tries == 0 || err == disk.ErrAgain && tries < probeTries; tries++ {
			queue.Submit(r)
			err = (<-ended).Err
		}
		if fault.KindOf(diskFault("", err)) == fault.NoSpace {
			return "the kernel offers io_uring; the disk is too full to try it", nil
		}
		if err != nil {
			return "", fmt.Errorf("io_uring failed on a scratch file: %w", err)
		}
	}
	if bytes.Count(b, []byte{0x5a}) != len(b) {
		return "", errors.New("io_uring read other bytes than it had written")
	}
	return "a write, a durable write, a sync and a read of a scratch file went well", nil
}
