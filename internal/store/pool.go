package store

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

// Names in a pool's folder.
const (
	identityName    = "identity"
	lockName        = "lock"
	spareName       = "spare"
	replicaPrefix   = "volume-"
	creatingPrefix  = "creating-"
	tombstonePrefix = "tombstone-"
)

// Options say how a pool is opened. The zero value of each field but Cluster stands for its default.
type Options struct {
	Cluster     [16]byte         // the pool must belong to it
	Reserve     uint64           // bytes never promised to data; default 2 % of the file system, at most 4 GiB
	Spare       int64            // bytes kept for small files on a full disk; default 4 MiB, negative: none
	Workers     int              // goroutines that do data I/O; default 16
	Backend     string           // BackendAuto, BackendURing or BackendPool; default auto
	LogCapacity int              // bytes of a new log; default 512 KiB
	Buffered    bool             // do not try direct I/O
	Synchronous bool             // everything happens inside Submit, in order, so that runs repeat; auto means pool
	Logger      *slog.Logger     // default: says nothing
	Now         func() time.Time // default: the clock
	Random      io.Reader        // default: the system's
}

const (
	defaultSpare = 4 << 20
	reserveShare = 50 // of the file system
	reserveMost  = 4 << 30
)

// Pool is an open pool. Its methods may be called from any goroutine.
type Pool struct {
	fs                         disk.FS
	dir                        string
	options                    Options
	identity                   Identity
	created                    time.Time
	lock                       io.Closer
	backend                    backend
	backendName, backendReason string
	lanes                      sync.WaitGroup
	buffers                    *block.Pool
	zeroes                     *block.Buffer
	reserve                    uint64

	spareUsed   atomic.Int32 // spareFull, spareSpent, spareBusy
	saidNoCache atomic.Bool

	mu       sync.Mutex
	open     map[volume.ID]*Replica // nil value: being opened, created or deleted
	promised uint64                 // bytes granted and not released
	claimed  uint64                 // bytes being allocated
	closed   bool
}

// OpenPool opens a pool that CreatePool made. It refuses a folder without an identity: a disk that is not
// mounted is an empty folder.
func OpenPool(fsys disk.FS, dir string, options Options) (*Pool, error) {
	op := "open pool in " + dir
	if options.Cluster == ([16]byte{}) {
		return nil, fault.New(fault.Invalid, op, "no cluster id was given")
	}
	identity, created, err := ReadIdentity(fsys, dir)
	if err != nil {
		return nil, err
	}
	if identity.Cluster != options.Cluster {
		return nil, fault.New(fault.Foreign, op, "pool "+identity.Name+" belongs to cluster "+
			volume.ID(identity.Cluster).String()+", not to this one; check which disk is mounted here")
	}
	switch options.Backend {
	case "", BackendAuto, BackendURing, BackendPool:
	default:
		return nil, fault.New(fault.Invalid, op, "there is no back end "+strconv.Quote(options.Backend)+
			"; choose auto, uring or pool")
	}
	lock, err := fsys.Lock(path.Join(dir, lockName), "process "+strconv.Itoa(os.Getpid()))
	var locked *disk.LockedError
	if errors.As(err, &locked) {
		return nil, fault.New(fault.Busy, op, "pool "+identity.Name+" is already in use by "+locked.Holder+
			"; stop it first")
	}
	if err != nil {
		return nil, diskFault(op, err)
	}
	p := &Pool{
		fs: fsys, dir: dir, options: withDefaults(options), identity: identity, created: created, lock: lock,
		buffers: block.NewPool(), open: map[volume.ID]*Replica{},
	}
	space, err := fsys.Space(dir)
	if err != nil {
		lock.Close()
		return nil, diskFault(op, err)
	}
	if p.reserve = options.Reserve; p.reserve == 0 {
		p.reserve = min(uint64(space.Total)/reserveShare, reserveMost)
	}
	p.zeroes = p.buffers.Get(bounceSize)
	clear(p.zeroes.Bytes())
	if err := p.chooseBackend(); err != nil {
		p.zeroes.Release()
		lock.Close()
		return nil, err
	}
	p.spareUsed.Store(spareSpent)
	p.fillSpare()
	return p, nil
}

func withDefaults(o Options) Options {
	if o.Spare == 0 {
		o.Spare = defaultSpare
	}
	if o.Workers <= 0 {
		o.Workers = defaultWorkers
	}
	if o.Backend == "" {
		o.Backend = BackendAuto
	}
	if o.LogCapacity <= 0 {
		o.LogCapacity = defaultLog
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	return o
}

// ReadIdentity tells whose pool is in a folder, without opening it.
func ReadIdentity(fsys disk.FS, dir string) (Identity, time.Time, error) {
	op := "open pool in " + dir
	info, err := fsys.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Identity{}, time.Time{}, fault.New(fault.NotFound, op,
			"the folder does not exist; mount the disk that holds the pool")
	case err != nil:
		return Identity{}, time.Time{}, diskFault(op, err)
	case !info.Dir:
		return Identity{}, time.Time{}, fault.New(fault.NotFound, op, "it is not a folder; check the path")
	}
	file, err := readFile(fsys, path.Join(dir, identityName))
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, time.Time{}, missingIdentity(fsys, op, dir)
	}
	if err != nil && fault.KindOf(err) == fault.Internal {
		return Identity{}, time.Time{}, diskFault(op, err)
	}
	id, created, err := parseIdentity(file)
	if err != nil {
		return Identity{}, time.Time{}, &fault.Error{Kind: fault.KindOf(err), Op: op, Err: err, Text: "its file " +
			identityName + " cannot be used; check the disk, or remove the pool from the cluster and create another"}
	}
	return id, created, nil
}

func missingIdentity(fsys disk.FS, op, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return diskFault(op, err)
	}
	for _, e := range entries {
		if !harmless(e.Name) {
			return fault.New(fault.Corrupt, op, "the folder has no file "+identityName+" but is not empty ("+e.Name+
				"); it is another folder, or a damaged pool: check the path and the disk")
		}
	}
	return fault.New(fault.NotFound, op,
		"the folder is empty; mount the disk that holds the pool")
}

// replace puts content in the place of a small file, durably and in one step, with the help of the spare.
func (p *Pool) replace(dir, name string, content []byte) error {
	err := replaceFile(p.fs, dir, name, content)
	if fault.KindOf(diskFault("", err)) == fault.NoSpace && p.spendSpare() {
		err = replaceFile(p.fs, dir, name, content)
	}
	p.fillSpare()
	return err
}

// start begins the goroutine of a lane.
func (p *Pool) start(loop func()) {
	if p.options.Synchronous {
		loop()
		return
	}
	p.lanes.Go(loop)
}

func (p *Pool) random64() uint64 {
	var b [8]byte
	p.random(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// random fills b. The system's source does not fail; one that does would give equal ids, so there is no going on.
func (p *Pool) random(b []byte) {
	if _, err := io.ReadFull(p.options.Random, b); err != nil {
		panic("store: the source of random bytes failed: " + err.Error())
	}
}

// Identity is who the pool is.
func (p *Pool) Identity() Identity { return p.identity }

// Close closes every replica, waits for their I/O, and gives the pool back.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	var open []*Replica
	for _, r := range p.open {
		if r != nil {
			open = append(open, r)
		}
	}
	p.mu.Unlock()
	var err error
	for _, r := range open {
		if closed := r.Close(); err == nil {
			err = closed
		}
	}
	p.backend.close()
	p.lanes.Wait()
	p.zeroes.Release()
	if unlocked := p.lock.Close(); err == nil {
		err = unlocked
	}
	return err
}

// hold keeps others from opening, creating or deleting the replica of a volume at the same time.
func (p *Pool) hold(op string, id volume.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fault.New(fault.Shutdown, op, "the pool is closed")
	}
	if _, taken := p.open[id]; taken {
		return fault.New(fault.Busy, op, "it is in use by this process; close it first")
	}
	p.open[id] = nil
	return nil
}

// release ends hold; opened, if not nil, stays as the open replica. It tells whether the pool was closed
// meanwhile: then nobody else will close opened.
func (p *Pool) release(id volume.ID, opened *Replica) (closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if opened != nil {
		p.open[id] = opened
	} else {
		delete(p.open, id)
	}
	return p.closed
}

func (p *Pool) forget(r *Replica) { p.release(r.id, nil) }
