package store

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"samovar/internal/bitmap"
	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
	"samovar/internal/volume"
)

var (
	testPool    = volume.PoolID{1}
	otherPool   = volume.PoolID{2}
	testCluster = [16]byte{9}
	testVolume  = volume.ID{7}
	otherVolume = volume.ID{8}
	epochStart  = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	testBuffers = block.NewPool()
)

const testSize = 8 << 20

// seeded is an endless, seeded source of "random" bytes.
type seeded struct{ rng *rand.Rand }

func (s seeded) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(s.rng.Uint32())
	}
	return len(p), nil
}

func testOptions(seed uint64) Options {
	return Options{
		Cluster: testCluster, Reserve: 64 << 10, Spare: 64 << 10, LogCapacity: 8 << 10, Synchronous: true,
		Now:    func() time.Time { return epochStart },
		Random: seeded{rand.New(rand.NewPCG(seed, 5))},
	}
}

func testConfiguration(id volume.ID, size uint64) volume.Configuration {
	return volume.Configuration{
		Volume: id, Name: "v" + id.String()[:2], Size: size, Layout: volume.Mirrored(size, 1<<20), Protocol: "C",
		Groups:     []volume.Group{{Members: []volume.Member{{Pool: testPool, InSync: true}, {Pool: otherPool}}}},
		Generation: 3, GenerationID: volume.GenerationID{3}, Revision: 17,
	}
}

func testState(id volume.ID, size uint64, epoch uint64) *volume.ReplicaState {
	c := testConfiguration(id, size)
	return &volume.ReplicaState{
		Volume: id, Pool: testPool, Fence: volume.Fence{Epoch: volume.Epoch(epoch), Engine: volume.EngineID{byte(epoch)}},
		Accepted: c, Prepared: 4, PreparedID: volume.GenerationID{4}, History: []volume.GenerationID{{3}, {2}},
	}
}

// world is a pool with one replica on some file system.
type world struct {
	t       testing.TB
	fs      disk.FS
	dir     string
	options Options
	pool    *Pool
	replica *Replica
	stored  volume.Stored
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, kind fault.Kind) {
	t.Helper()
	if fault.KindOf(err) != kind {
		t.Fatalf("got %v (%v), want kind %v", err, fault.KindOf(err), kind)
	}
}

func newWorld(t testing.TB, fsys disk.FS, dir string, options Options) *world {
	t.Helper()
	w := &world{t: t, fs: fsys, dir: dir, options: options}
	must(t, CreatePool(fsys, dir, Identity{Pool: testPool, Cluster: testCluster, Name: "ssd1"}, epochStart))
	w.openPool()
	must(t, w.pool.CreateReplica(testConfiguration(testVolume, testSize), *testState(testVolume, testSize, 1), nil))
	w.openReplica()
	return w
}

func (w *world) openPool() {
	w.t.Helper()
	var err error
	w.pool, err = OpenPool(w.fs, w.dir, w.options)
	must(w.t, err)
}

func (w *world) openReplica() {
	w.t.Helper()
	var err error
	w.replica, w.stored, err = w.pool.OpenReplica(testVolume)
	must(w.t, err)
}

func (w *world) reopen() {
	w.t.Helper()
	must(w.t, w.pool.Close())
	w.openPool()
	w.openReplica()
}

// do submits operations as one batch and waits for all; the errors are in their order.
func (w *world) do(ops ...*Op) []error {
	return do(w.replica, ops...)
}

func do(r *Replica, ops ...*Op) []error {
	errs := make([]error, len(ops))
	done := make(chan struct{}, len(ops))
	for i, op := range ops {
		op.Done = func(_ *Op, err error) { errs[i] = err; done <- struct{}{} }
	}
	r.Submit(ops)
	for range ops {
		<-done
	}
	return errs
}

func (w *world) ok(ops ...*Op) {
	w.t.Helper()
	for i, err := range w.do(ops...) {
		if err != nil {
			w.t.Fatalf("%v: %v", ops[i].Code, err)
		}
	}
}

func at(offset, length uint64) volume.Range { return volume.Range{Offset: offset, Length: length} }

func filled(n int, f func(i int) byte) *block.Buffer {
	b := testBuffers.Get(n)
	p := b.Bytes()
	for i := range p {
		p[i] = f(i)
	}
	return b
}

func constant(n int, c byte) *block.Buffer {
	b := testBuffers.Get(n)
	p := b.Bytes()
	p[0] = c
	for done := 1; done < n; done *= 2 {
		copy(p[done:], p[:done])
	}
	return b
}

func (w *world) read(offset, length uint64) []byte {
	w.t.Helper()
	b := testBuffers.Get(int(length))
	defer b.Release()
	w.ok(&Op{Code: Read, Range: at(offset, length), Buffer: b})
	return bytes.Clone(b.Bytes())
}

func (w *world) wantBytes(offset, length uint64, c byte) {
	w.t.Helper()
	if i := firstNot(w.read(offset, length), c); i >= 0 {
		w.t.Fatalf("byte %d is not %#x", offset+uint64(i), c)
	}
}

// firstNot finds the first byte of p that is not c, or -1.
func firstNot(p []byte, c byte) int {
	if len(p) > 1 && p[0] == c && bytes.Equal(p[1:], p[:len(p)-1]) {
		return -1
	}
	return slices.IndexFunc(p, func(b byte) bool { return b != c })
}

// eachBackend runs a test on both back ends, as a synchronous pool on a disk in memory can have them.
func eachBackend(t *testing.T, f func(t *testing.T, backend string)) {
	for _, backend := range []string{BackendPool, BackendURing} {
		t.Run(backend, func(t *testing.T) { f(t, backend) })
	}
}

// setup is one way to open a pool.
type setup struct {
	backend     string
	synchronous bool
}

func (s setup) options(seed uint64) Options {
	o := testOptions(seed)
	o.Backend, o.Synchronous = s.backend, s.synchronous
	return o
}

func (s setup) String() string {
	return s.backend + map[bool]string{true: "-synchronous"}[s.synchronous]
}

// setups are the ways to open a pool on a file system.
func setups(fsys disk.FS) []setup {
	list := []setup{{BackendPool, true}, {BackendPool, false}, {BackendAuto, false}}
	q, err := fsys.(disk.Queues).OpenQueue(1, func(*disk.Request) {})
	if err != nil {
		return list
	}
	q.Close()
	list = append(list, setup{BackendURing, false})
	if _, native := fsys.(disk.Native); !native {
		list = append(list, setup{BackendURing, true})
	}
	return list
}

// eachDisk runs a test on the real file system and on those in memory.
func eachDisk(t *testing.T, f func(t *testing.T, fsys disk.FS, dir string)) {
	t.Run("native", func(t *testing.T) { f(t, disk.Native{}, t.TempDir()+"/pool") })
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Run("tmpfs", func(t *testing.T) {
			dir, err := os.MkdirTemp("/dev/shm", "store")
			if err != nil {
				t.Skip(err)
			}
			defer os.RemoveAll(dir)
			f(t, disk.Native{}, dir+"/pool")
		})
	}
	t.Run("memory", func(t *testing.T) { f(t, memory.New(1, memory.Options{Queue: true}), "/pool") })
	t.Run("memory-direct-4096", func(t *testing.T) {
		direct := disk.Limits{Direct: true, Offset: 4096, Memory: 512}
		f(t, memory.New(1, memory.Options{Direct: direct, Queue: true}), "/pool")
	})
	t.Run("memory-bare", func(t *testing.T) {
		f(t, memory.New(1, memory.Options{Bare: true, HideHoles: true, Queue: true}), "/pool")
	})
}

func set(runs ...uint64) *bitmap.Bitmap {
	b := &bitmap.Bitmap{}
	for i := 0; i < len(runs); i += 2 {
		b.Add(runs[i], runs[i+1])
	}
	return b
}

func sameSet(a, b *bitmap.Bitmap) bool { return string(a.Append(nil)) == string(b.Append(nil)) }

func logger(buf *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(buf, nil)) }
