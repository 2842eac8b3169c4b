package datapath

import (
	"context"
	"flag"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/driver/enginehost"
	"samovar/internal/driver/link"
	"samovar/internal/driver/replicahost"
	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/store"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
	"samovar/internal/wire"
)

var dirs = flag.String("pools", "", "directory under which the two pools are made, for example a RAM disk; default: the temporary directory")

// record is a cluster store with one volume in it.
type record struct {
	mu sync.Mutex
	c  volume.Configuration
}

func (r *record) Propose(_ context.Context, next volume.Configuration) (engine.Outcome, volume.Configuration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if next.Revision != r.c.Revision {
		return engine.Conflict, r.c.Clone()
	}
	next.Revision++
	r.c = next.Clone()
	return engine.Applied, next
}

func (r *record) Look(context.Context, volume.ID) (volume.Configuration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.c.Clone(), nil
}

// pair is a volume with a local copy and one behind a socket.
type pair struct {
	options link.Options
	local   *replicahost.Host
	near    volume.PoolID
	far     string
}

func (p *pair) Connect(ctx context.Context, t link.Target, r link.Receiver) (link.Link, error) {
	if t.Pool == p.near {
		return link.Local(r, func(l link.Link) (link.Receiver, error) {
			return p.local.Accept(replicahost.Key{Volume: t.Volume, Pool: t.Pool}, l)
		})
	}
	c, err := link.Dial(ctx, p.options, wire.Engine, p.far, t)
	if err != nil {
		return nil, err
	}
	c.Run(r, nil)
	return c, nil
}

// attach makes two replicas and attaches the volume.
func attach(b *testing.B, size uint64) block.Device {
	b.Helper()
	root := b.TempDir()
	if *dirs != "" {
		var err error
		if root, err = os.MkdirTemp(*dirs, "datapath"); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { os.RemoveAll(root) })
	}
	quiet := slog.New(slog.DiscardHandler)
	buffers := block.NewPool()
	cfg := volume.Configuration{
		Name: "bench", Size: size, Layout: volume.Mirrored(size, 64<<20), Protocol: "C", Generation: 1,
		GenerationID: volume.GenerationID{1}, Groups: []volume.Group{{}}, Volume: volume.ID{1},
	}
	for i := range 2 {
		cfg.Groups[0].Members = append(cfg.Groups[0].Members, volume.Member{Pool: volume.PoolID{byte(i + 1)}, InSync: true})
	}
	p := &pair{options: link.Options{Buffers: buffers, Counters: &link.Counters{}, Handshake: 3 * time.Second}}
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	for i := range 2 {
		id := cfg.Groups[0].Members[i].Pool
		dir := filepath.Join(root, string(rune('a'+i)))
		if err := store.CreatePool(disk.Native{}, dir, store.Identity{Pool: id, Cluster: [16]byte{1}, Name: "p"}, time.Now()); err != nil {
			b.Fatal(err)
		}
		pool, err := store.OpenPool(disk.Native{}, dir, store.Options{Cluster: [16]byte{1}, Logger: quiet, Reserve: 1 << 20})
		if err != nil {
			b.Fatal(err)
		}
		state := volume.ReplicaState{Volume: cfg.Volume, Pool: id, Accepted: cfg, History: []volume.GenerationID{cfg.GenerationID}}
		if err := pool.CreateReplica(cfg, state, nil); err != nil {
			b.Fatal(err)
		}
		h := replicahost.New(replicahost.Options{
			Buffers: buffers, Logger: quiet, Events: func(replicahost.Event) {}, LogLimit: 4096, FetchTimeout: time.Second,
		})
		if err := h.Add(pool, cfg.Volume); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			h.Close()
			if err := pool.Close(); err != nil {
				b.Error(err)
			}
		})
		if i == 0 {
			p.local, p.near = h, id
			continue
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		p.far = ln.Addr().String()
		go link.Serve(ctx, ln, p.options, h, quiet)
	}
	a := enginehost.Start(enginehost.Options{
		Engine: engine.Options{
			Engine: volume.EngineID{9}, Local: p.near, PingInterval: time.Second, PingTimeout: 5 * time.Second,
			Lease: 5 * time.Second, AttachWait: 5 * time.Second, CopyDeadline: 10 * time.Second,
			SyncInterval: 2 * time.Second, RetryDelay: 100 * time.Millisecond, Copies: 4, CopyBlocks: 16,
			NewGeneration: func() volume.GenerationID { return volume.GenerationID{7} },
		},
		Recorder: &record{c: cfg}, Connector: p, Buffers: buffers, Logger: quiet,
		Events: func(engine.Event) {}, StoreTimeout: time.Second, MaxRequests: 256, MaxBytes: 64 << 20,
	}, cfg)
	if err := a.Serving(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(a.Abort)
	return a.Device(false, func() {})
}

// load runs b.N requests with a number of them under way, and calls next for each.
func load(b *testing.B, d block.Device, depth int, next func(q *block.Request)) {
	b.ReportAllocs()
	b.ResetTimer()
	var started atomic.Int64
	var done sync.WaitGroup
	done.Add(b.N)
	var again func(q *block.Request, err error)
	submit := func(q *block.Request) {
		next(q)
		q.Done = again
		d.Submit([]*block.Request{q})
	}
	ready := make(chan *block.Request, depth)
	again = func(q *block.Request, err error) {
		if err != nil {
			b.Error(err)
		}
		q.Data.Release()
		q.Data = nil
		done.Done()
		ready <- q
	}
	for range min(depth, b.N) {
		started.Add(1)
		submit(&block.Request{})
	}
	for started.Load() < int64(b.N) {
		started.Add(1)
		submit(<-ready)
	}
	done.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func writes(b *testing.B, depth, size int, sequential bool) {
	const volumeSize = 256 << 20
	d := attach(b, volumeSize)
	buffers := block.NewPool()
	rng := rand.New(rand.NewPCG(1, 2))
	at := uint64(0)
	next := func(q *block.Request) {
		q.Op, q.Length, q.Data = block.Write, uint64(size), buffers.Get(size)
		q.Offset = rng.Uint64N(volumeSize/uint64(size)) * uint64(size)
		if sequential {
			q.Offset = at
			at = (at + uint64(size)) % volumeSize
		}
	}
	// Every file is written in full before it is timed.
	fill := make(chan error, 1)
	for off := uint64(0); off < volumeSize; off += 1 << 20 {
		q := &block.Request{Op: block.Write, Offset: off, Length: 1 << 20, Data: buffers.Get(1 << 20)}
		q.Done = func(q *block.Request, err error) { q.Data.Release(); fill <- err }
		d.Submit([]*block.Request{q})
		if err := <-fill; err != nil {
			b.Fatal(err, fault.KindOf(err))
		}
	}
	b.SetBytes(int64(size))
	load(b, d, depth, next)
}

func BenchmarkWrite4KDepth32(b *testing.B) { writes(b, 32, 4096, false) }
func BenchmarkWrite4KDepth1(b *testing.B)  { writes(b, 1, 4096, false) }
func BenchmarkWrite1MDepth16(b *testing.B) { writes(b, 16, 1<<20, true) }
