package store

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
)

var testDirect = disk.Limits{Direct: true, Offset: 4096, Memory: 512}

// Which back end runs, and that Info and the log say why.
func TestBackendChoice(t *testing.T) {
	for _, test := range []struct {
		name    string
		disk    memory.Options
		options Options
		want    string
		reason  string
	}{
		{"direct", memory.Options{Queue: true, Direct: testDirect}, Options{}, BackendURing, "went well"},
		{"no direct", memory.Options{Queue: true}, Options{}, BackendPool, "no direct I/O"},
		{"no queue", memory.Options{Direct: testDirect}, Options{}, BackendPool, "there is no queue"},
		{"buffered", memory.Options{Queue: true, Direct: testDirect}, Options{Buffered: true}, BackendPool, "switched off"},
		{"synchronous", memory.Options{Queue: true, Direct: testDirect}, Options{Synchronous: true}, BackendPool, "synchronous"},
		{"pool", memory.Options{Queue: true, Direct: testDirect}, Options{Backend: BackendPool}, BackendPool, "asked"},
		{"forced", memory.Options{Queue: true}, Options{Backend: BackendURing}, BackendURing, "went well"},
		{"impossible", memory.Options{}, Options{Backend: BackendURing}, "", "there is no queue"},
		{"unknown", memory.Options{}, Options{Backend: "tape"}, "", "tape"},
	} {
		t.Run(test.name, func(t *testing.T) {
			fsys := memory.New(1, test.disk)
			must(t, CreatePool(fsys, "/pool", Identity{Pool: testPool, Cluster: testCluster, Name: "ssd1"}, epochStart))
			var log bytes.Buffer
			test.options.Cluster, test.options.Logger = testCluster, logger(&log)
			p, err := OpenPool(fsys, "/pool", test.options)
			if test.want == "" {
				wantKind(t, err, fault.Invalid)
				if !strings.Contains(err.Error(), test.reason) {
					t.Fatalf("%v does not say %q", err, test.reason)
				}
				p, err = OpenPool(fsys, "/pool", Options{Cluster: testCluster}) // nothing was left locked
				must(t, err)
				must(t, p.Close())
				return
			}
			must(t, err)
			info, err := p.Info()
			must(t, err)
			if info.Backend != test.want || !strings.Contains(info.Reason, test.reason) || len(info.Leftovers) != 0 {
				t.Fatalf("info %+v", info)
			}
			if strings.Count(log.String(), "data back end") != 1 || !strings.Contains(log.String(), "backend="+test.want) {
				t.Fatalf("log %q", log.String())
			}
			must(t, p.Close())
		})
	}
}

// A disk that fails the probe gets the pool, one that is full does not.
func TestBackendProbeFails(t *testing.T) {
	for _, op := range []memory.Op{memory.Make, memory.Write, memory.Sync, memory.Read} {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			fsys := memory.New(1, memory.Options{Queue: true, Direct: testDirect})
			w := newWorld(t, fsys, "/pool", testOptions(1))
			must(t, w.pool.Close())
			fsys.Hook(func(c memory.Call) memory.Fault {
				if c.Op == op && strings.HasSuffix(c.Path, probeName) {
					return memory.Fault{Err: cause}
				}
				return memory.Fault{}
			})
			w.options.Synchronous = false
			w.openPool()
			info, err := w.pool.Info()
			must(t, err)
			want := BackendPool
			if cause == syscall.ENOSPC && op != memory.Make {
				want = BackendURing
			}
			if info.Backend != want || len(info.Leftovers) != 0 {
				t.Fatalf("%v fails with %v: %+v", op, cause, info)
			}
			w.openReplica()
			w.wantBytes(0, 4096, 0)
			must(t, w.pool.Close())
		}
	}
}

// A bad place on the disk fails the operation that touches it, and none that was carried out with it.
func TestErrorIsOfOneOperation(t *testing.T) {
	for _, s := range setups(memory.New(1, memory.Options{Queue: true})) {
		for _, fua := range []bool{false, true} {
			fsys := memory.New(1, memory.Options{Queue: true, Direct: testDirect})
			w := newWorld(t, fsys, "/pool", s.options(1))
			const bad = 17 * 4096
			fsys.Hook(func(c memory.Call) memory.Fault {
				if c.Op == memory.Write && strings.HasSuffix(c.Path, dataName) && c.Offset <= bad && bad < c.Offset+c.Length {
					return memory.Fault{Err: syscall.EIO}
				}
				return memory.Fault{}
			})
			var ops []*Op
			for i := range uint64(40) {
				ops = append(ops, &Op{Code: Write, Range: at(i*4096, 4096), Buffer: constant(4096, byte(i)), FUA: fua})
			}
			for i, err := range w.do(ops...) {
				switch {
				case i == 17:
					wantKind(t, err, fault.IO)
				case err != nil && !fua: // a durable one may fail with the loss
					t.Fatalf("%v: operation %d: %v", s, i, err)
				}
			}
			if lost := w.replica.SyncLoss() != nil; lost != fua {
				t.Fatalf("%v: loss %v, durable %v", s, w.replica.SyncLoss(), fua)
			}
			fsys.Hook(nil)
			for i := range uint64(40) {
				if i != 17 && !fua {
					w.wantBytes(i*4096, 4096, byte(i))
				}
			}
			must(t, w.pool.Close())
		}
	}
}
