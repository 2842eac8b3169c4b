package store

import (
	"errors"
	"sync"
	"sync/atomic"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Replica is one open replica. Submit may be called from any goroutine.
type Replica struct {
	pool     *Pool
	id       volume.ID
	dir      string
	size     uint64
	buffered string // why the page cache is used; empty if it is not
	data     dataFile

	syncs lane // Sync, and the end of durable operations
	logs  lane // owns log
	files lane // owns missingSaved and catchingUp

	log          regionLog
	catchingUp   bool // by the state file
	missingSaved bool // the missing file belongs to this catching-up, or to the next

	// inFlight counts operations between Submit and the return of their Done.
	inFlight atomic.Int64
	closing  atomic.Bool
	idle     chan struct{} // inFlight fell to zero while closing
	closed   chan struct{} // Close is done

	mu       sync.Mutex
	syncLost error // the first failure to put data on stable storage, until AcceptSyncLoss
}

// Volume is the id of the replica's volume.
func (r *Replica) Volume() volume.ID { return r.id }

// Size is the size of the volume in bytes.
func (r *Replica) Size() uint64 { return r.size }

// Buffered says why the replica's data goes through the page cache; it is empty if it does not.
func (r *Replica) Buffered() string { return r.buffered }

// op names what was tried, for faults.
func (r *Replica) op(what string) string {
	return what + " of volume " + r.id.String() + " on pool " + r.pool.identity.Name
}

// Submit starts operations. It does not wait for the disk, except in a synchronous pool. The slice may be used
// again when it returns.
func (r *Replica) Submit(ops []*Op) {
	r.inFlight.Add(int64(len(ops)))
	if r.closing.Load() {
		err := fault.New(fault.Shutdown, r.op("use"), "the replica is closed")
		for _, op := range ops {
			r.finish(op, err)
		}
		return
	}
	var data opList
	for _, op := range ops {
		op.replica, op.next = r, nil
		if err := op.check(r.size); err != nil {
			r.finish(op, err)
			continue
		}
		switch op.Code {
		case Sync:
			r.syncs.push(op)
		case LogChange:
			r.logs.push(op)
		case SaveState, SaveRecord, DropRecord, SaveMissing:
			if err := r.encode(op); err != nil {
				r.finish(op, err)
				continue
			}
			r.files.push(op)
		default:
			data.push(op)
		}
	}
	if data.head != nil {
		r.pool.backend.submit(data)
	}
}

// finish ends an operation. After it, the operation belongs to its owner again.
func (r *Replica) finish(op *Op, err error) {
	if err != nil && fault.KindOf(err) == fault.Internal {
		err = diskFault(r.op(op.Code.String()), err)
	}
	op.Done(op, err)
	if r.inFlight.Add(-1) == 0 && r.closing.Load() {
		select {
		case r.idle <- struct{}{}:
		default:
		}
	}
}

// perform executes one operation of the data file and ends it, or hands it to the sync lane.
func (r *Replica) perform(op *Op) {
	offset, length := int64(op.Range.Offset), int64(op.Range.Length)
	if op.FUA {
		if err := r.SyncLoss(); err != nil {
			r.finish(op, err)
			return
		}
	}
	var err error
	switch op.Code {
	case Read:
		err = r.data.read(op.Buffer.Bytes(), offset)
	case ReadSegments:
		op.Segments, err = r.data.segments(op.Segments[:0], op.Buffer.Bytes(), offset)
	case Write:
		err = r.write(op.Buffer.Bytes(), offset, op.FUA)
	case WriteSegments:
		err = r.writeSegments(op)
	case Zero:
		err = r.data.zero(offset, length, op.Punch)
	case Reserve:
		err = r.reserve(offset, length)
	}
	if err == nil && op.FUA && (op.Code == Zero || op.Code == WriteSegments) {
		r.syncs.push(op)
		return
	}
	r.finish(op, err)
}

// write writes, durably or not. Through the page cache a durable write is done in two steps, because only then
// it can be told whether this write failed, or the file lost older ones: the kernel reports a loss once, to
// whoever asks first.
func (r *Replica) write(p []byte, offset int64, durable bool) error {
	if !durable {
		return r.data.write(p, offset, false)
	}
	if r.data.limits.Direct {
		return r.wroteDurably(r.data.write(p, offset, true))
	}
	if err := r.data.write(p, offset, false); err != nil {
		return err
	}
	return r.syncData()
}

// wroteDurably judges the outcome of a durable write past the page cache.
func (r *Replica) wroteDurably(err error) error {
	if err != nil && fault.KindOf(diskFault("", err)) == fault.IO {
		return r.loseSync(err)
	}
	return err
}

func (r *Replica) writeSegments(op *Op) error {
	for _, s := range op.Segments {
		var err error
		if s.Hole {
			err = r.data.zero(int64(s.Range.Offset), int64(s.Range.Length), true)
		} else {
			err = r.data.write(op.Buffer.Bytes()[s.At:s.At+s.Range.Length], int64(s.Range.Offset), false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reserve takes space for a range, in whole granules. What is promised to others and the pool's reserve stay
// free. Space that was reserved but never written counts as needed again, so a pool that is full to the brim
// may refuse what it already has: the same answer as for a full disk, and nothing is lost.
func (r *Replica) reserve(offset, length int64) error {
	g := r.data.granule
	start := offset / g * g
	end := min((offset+length+g-1)/g*g, (int64(r.size)+g-1)/g*g)
	need, err := r.data.holes(start, min(end, int64(r.size))-start)
	if err != nil || need == 0 {
		return err
	}
	release, err := r.pool.claim(uint64(need))
	if err != nil {
		return err
	}
	defer release()
	if err = r.data.file.Allocate(start, end-start); errors.Is(err, errors.ErrUnsupported) {
		return fault.New(fault.Invalid, r.op("reserve space"),
			"the file system cannot reserve space; put pools on ext4 or XFS")
	}
	return err
}

// runSyncs ends all operations that wait for stable storage with one call. Each was submitted (or had its
// effect) before the call begins, so whatever was done before one of them is covered.
func (r *Replica) runSyncs(batch opList) {
	err := r.syncData()
	for op := batch.pop(); op != nil; op = batch.pop() {
		r.finish(op, err)
	}
}

// syncData puts the data file on stable storage.
func (r *Replica) syncData() error {
	if err := r.SyncLoss(); err != nil {
		return err
	}
	if err := r.data.file.Sync(); err != nil {
		return r.loseSync(err)
	}
	return nil
}

// loseSync remembers that data may be lost. The kernel marks pages that it could not write as clean, so a later
// fdatasync succeeds without them: it must not count.
func (r *Replica) loseSync(cause error) error {
	err := &fault.Error{Kind: fault.IO, Op: r.op("flush"), Err: cause,
		Text: "data written since the last good flush may be lost on this disk; check it, then let the volume copy it anew"}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.syncLost == nil {
		r.syncLost = err
	}
	return err
}

// SyncLoss is the first failure to put data on stable storage. While it stands, every Sync and every durable
// write fails with it. It ends when the replica is closed, or by AcceptSyncLoss.
func (r *Replica) SyncLoss() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncLost
}

// AcceptSyncLoss lets Sync count again. It is for a caller that has rewritten every region since the last good
// Sync, or has an operator's word for it.
func (r *Replica) AcceptSyncLoss() {
	r.mu.Lock()
	r.syncLost = nil
	r.mu.Unlock()
}

// runLogs makes the log say what a batch asks for, with one write and one sync.
func (r *Replica) runLogs(batch opList) {
	adds := false
	for op := batch.head; op != nil; op = op.next {
		r.log.change(op.Add, op.Drop)
		adds = adds || len(op.Add) > 0
	}
	var err error
	if adds && !r.log.settled() || r.log.overdue() {
		err = r.log.commit()
	}
	for op := batch.pop(); op != nil; op = batch.pop() {
		if len(op.Add) > 0 {
			r.finish(op, err)
		} else {
			r.finish(op, nil)
		}
	}
}

// Close waits until every operation has ended and its Done has returned, then closes the files. Operations
// submitted from then on fail. It does not flush data.
func (r *Replica) Close() error {
	if r.closing.Swap(true) {
		<-r.closed
		return nil
	}
	defer close(r.closed)
	for r.inFlight.Load() != 0 {
		<-r.idle
	}
	err := r.log.close()
	if closed := r.data.file.Close(); err == nil {
		err = closed
	}
	r.pool.forget(r)
	return diskFault(r.op("close"), err)
}

// newReplica prepares the lanes.
func newReplica(p *Pool, id volume.ID, dir string) *Replica {
	r := &Replica{pool: p, id: id, dir: dir, idle: make(chan struct{}, 1), closed: make(chan struct{})}
	r.syncs = lane{run: r.runSyncs, start: p.start}
	r.logs = lane{run: r.runLogs, start: p.start}
	r.files = lane{run: r.runFiles, start: p.start}
	r.log = regionLog{
		fs: p.fs, dir: dir, pool: p.identity.Pool, volume: id, capacity: p.options.LogCapacity,
		random:  p.random64,
		replace: func(name string, content []byte) error { return p.replace(dir, name, content) },
		regions: &bitmap.Bitmap{}, stored: &bitmap.Bitmap{}, toDrop: &bitmap.Bitmap{}, toAdd: &bitmap.Bitmap{},
	}
	return r
}
