package store

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

var (
	measureDir     = flag.String("measure", "", "folder on the disk to compare the back ends on; empty: do not")
	measureRounds  = flag.Int("measure.rounds", 5, "rounds, each with every back end")
	measureTime    = flag.Duration("measure.time", 500*time.Millisecond, "of one run")
	measureEnds    = flag.String("measure.ends", "pool,auto,uring", "back ends; the first is compared with")
	measureOnly    = flag.String("measure.only", "", "part of the names of workloads")
	measureThrough = flag.Bool("measure.buffered", false, "through the page cache")
)

// workload keeps depth operations of length bytes under way. When some are done it submits as many again in one
// batch, as an engine does that finds several requests in a socket.
type workload struct {
	name          string
	depth, length int
	prepare       func(op *Op, n uint64)
}

const measureSize = 512 << 20

var workloads = []workload{
	{"4K random write, depth 32", 32, 4096, func(op *Op, _ uint64) { op.Code = Write }},
	{"4K random write, depth 16", 16, 4096, func(op *Op, _ uint64) { op.Code = Write }},
	{"4K random write, depth 8", 8, 4096, func(op *Op, _ uint64) { op.Code = Write }},
	{"4K random write, depth 4", 4, 4096, func(op *Op, _ uint64) { op.Code = Write }},
	{"4K random write, depth 1", 1, 4096, func(op *Op, _ uint64) { op.Code = Write }},
	{"4K random read, depth 32", 32, 4096, func(op *Op, _ uint64) { op.Code = Read }},
	{"4K random read, depth 4", 4, 4096, func(op *Op, _ uint64) { op.Code = Read }},
	{"4K sequential write, depth 32", 32, 4096, func(op *Op, n uint64) {
		op.Code, op.Range.Offset = Write, n*4096%measureSize
	}},
	{"1M sequential write, depth 16", 16, 1 << 20, func(op *Op, n uint64) {
		op.Code, op.Range.Offset = Write, n<<20%measureSize
	}},
	{"1M sequential read, depth 16", 16, 1 << 20, func(op *Op, n uint64) {
		op.Code, op.Range.Offset = Read, n<<20%measureSize
	}},
	{"4K write then sync, depth 1", 1, 4096, func(op *Op, n uint64) {
		if op.Code = Write; n%2 == 1 {
			op.Code = Sync
		}
	}},
	{"4K durable write, depth 1", 1, 4096, func(op *Op, _ uint64) { op.Code, op.FUA = Write, true }},
	{"4K durable write, depth 32", 32, 4096, func(op *Op, _ uint64) { op.Code, op.FUA = Write, true }},
}

// sample is a run: operations a second, and per operation the CPU time of the process and of the whole machine,
// other processes included.
type sample struct{ rate, process, machine float64 }

// TestMeasureBackends prints a comparison; see docs/performance.md. Others may use the machine meanwhile: so runs
// are short and interleaved, and rates are those of the better quarter of the rounds.
//
//	go test ./internal/store -run MeasureBackends -v -measure /mnt/disk
func TestMeasureBackends(t *testing.T) {
	if *measureDir == "" {
		t.Skip("-measure is not set")
	}
	ends := strings.Split(*measureEnds, ",")
	worlds := map[string]*world{}
	for _, end := range ends {
		dir := *measureDir + "/pool-" + end
		defer os.RemoveAll(dir)
		worlds[end] = measureWorld(t, dir, end)
		defer worlds[end].pool.Close()
	}
	for _, load := range workloads {
		if !strings.Contains(load.name, *measureOnly) {
			continue
		}
		samples := map[string][]sample{}
		for round := range *measureRounds {
			for i := range ends { // who is first changes
				end := ends[(i+round)%len(ends)]
				samples[end] = append(samples[end], load.run(t, worlds[end].replica, *measureTime))
			}
		}
		for _, end := range ends {
			quiet := quantile(samples[end], 0.75, sample.perSecond)
			fmt.Printf("%-30s %-6s rate %7.0f/s x%.2f, median x%.2f; CPU us of the process %6.1f x%.2f, of the machine %6.1f x%.2f\n",
				load.name, end, quiet, quiet/quantile(samples[ends[0]], 0.75, sample.perSecond),
				quantile(samples[end], 0.5, sample.perSecond)/quantile(samples[ends[0]], 0.5, sample.perSecond),
				quantile(samples[end], 0.5, sample.ofProcess),
				quantile(samples[end], 0.5, sample.ofProcess)/quantile(samples[ends[0]], 0.5, sample.ofProcess),
				quantile(samples[end], 0.25, sample.ofMachine),
				quantile(samples[end], 0.25, sample.ofMachine)/quantile(samples[ends[0]], 0.25, sample.ofMachine))
		}
	}
}

func (s sample) perSecond() float64 { return s.rate }
func (s sample) ofProcess() float64 { return s.process }
func (s sample) ofMachine() float64 { return s.machine }

func quantile(samples []sample, q float64, get func(sample) float64) float64 {
	var list []float64
	for _, s := range samples {
		list = append(list, get(s))
	}
	slices.Sort(list)
	return list[int(q*float64(len(list)-1)+0.5)]
}

func measureWorld(t *testing.T, dir, end string) *world {
	options := testOptions(1)
	options.Synchronous, options.LogCapacity, options.Backend, options.Buffered = false, 0, end, *measureThrough
	w := &world{t: t, fs: disk.Native{}, dir: dir, options: options}
	must(t, CreatePool(w.fs, dir, Identity{Pool: testPool, Cluster: testCluster, Name: end}, epochStart))
	w.openPool()
	must(t, w.pool.CreateReplica(testConfiguration(testVolume, measureSize), volume.ReplicaState{}, nil))
	w.openReplica()
	for range 2 {
		for i := range uint64(measureSize >> 20) {
			w.ok(&Op{Code: Write, Range: at(i<<20, 1<<20), Buffer: constant(1<<20, 3)})
		}
	}
	w.ok(&Op{Code: Sync})
	return w
}

func (l workload) run(t *testing.T, r *Replica, d time.Duration) sample {
	var mu sync.Mutex
	var ready []*Op
	wake := make(chan struct{}, 1)
	done := func(op *Op, err error) {
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		ready = append(ready, op)
		mu.Unlock()
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	buffers := block.NewPool()
	places := rand.New(rand.NewPCG(1, 1)).Perm(measureSize / l.length)
	var batch []*Op
	for range l.depth {
		batch = append(batch, &Op{Buffer: buffers.Get(l.length), Done: done})
	}
	n, underWay, count := uint64(0), 0, 0
	start, process, machine := time.Now(), processTime(), machineTime()
	for {
		if time.Since(start) < d {
			for _, op := range batch {
				op.Range = at(uint64(places[n%uint64(len(places))]*l.length), uint64(l.length))
				l.prepare(op, n)
				n++
			}
			underWay += len(batch)
			r.Submit(batch)
		} else if underWay == 0 {
			break
		}
		<-wake
		mu.Lock()
		batch, ready = ready, batch[:0]
		mu.Unlock()
		underWay -= len(batch)
		count += len(batch)
	}
	took := time.Since(start)
	return sample{float64(count) / took.Seconds(), (processTime() - process) / float64(count),
		(machineTime() - machine) / float64(count)}
}

// processTime is the CPU time of this process, machineTime that of all; in microseconds.
func processTime() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec)*1e6 + float64(u.Utime.Usec+u.Stime.Usec)
}

func machineTime() float64 {
	text, _ := os.ReadFile("/proc/stat")
	var user, nice, system, idle, wait, interrupts, soft float64
	_, _ = fmt.Sscanf(string(text), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &wait, &interrupts, &soft)
	return (user + nice + system + interrupts + soft) * 1e4 // a tick is a hundredth of a second
}
