package simulation

import (
	"time"

	"samovar/internal/replication/engine"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// profile is what a seed decides once about its world: sizes, speeds, options, and which faults happen how often.
type profile struct {
	replicas, clients int
	size, extent      uint64
	hot               []uint64

	latency    time.Duration // of a message, mean
	breakAfter time.Duration // a cut connection is given up within
	stragglers float64       // chance that something takes much longer
	metaTime   time.Duration
	storeTime  time.Duration
	drift      float64 // of clocks
	blindness  time.Duration

	engine  engine.Options
	replica replica.Options

	depth                 int
	think                 time.Duration
	writes, reads, zeroes float64

	length time.Duration // how long faults go on
	pause  time.Duration // between faults, mean
	space  bool
	ambush float64 // chance of a strike at a delicate moment
	// fullRestart is the chance that an engine ends while it copies everything to a replica.
	fullRestart float64
	weight      [faultKinds]float64
}

func (w *World) replicaOptions() replica.Options {
	o := w.profile.replica
	o.Bugs = w.config.Bugs
	return o
}

// draw decides the profile of a world.
func (w *World) draw() profile {
	r := w.rng
	p := profile{
		replicas: []int{1, 2, 2, 2, 3, 3, 3, 3, 4}[r.IntN(9)],
		clients:  1 + r.IntN(2),
		drift:    0.04 * r.Float64(),
		latency:  w.between(40*time.Microsecond, time.Millisecond),
		metaTime: w.between(200*time.Microsecond, 3*time.Millisecond),

		storeTime:  w.between(500*time.Microsecond, 10*time.Millisecond),
		breakAfter: w.between(300*time.Millisecond, 4*time.Second),
		blindness:  4 * time.Second,
		length:     w.between(4*time.Second, 16*time.Second),
	}
	p.extent = volume.MinExtentSize << r.IntN(7)
	p.size = min(p.extent*(1+r.Uint64N(16)), 256<<20)
	if w.chance(0.3) {
		p.size -= volume.SectorSize * r.Uint64N(p.extent/volume.SectorSize)
	}
	for range r.IntN(4) {
		spot := r.Uint64N(p.size)
		if w.chance(0.5) {
			spot = spot / p.extent * p.extent // the border of an extent
		}
		p.hot = append(p.hot, spot)
	}
	if w.chance(0.3) {
		p.stragglers = 0.02 * r.Float64()
	}
	w.drawOptions(&p)
	p.depth = []int{1, 2, 4, 8, 16, 32}[r.IntN(6)]
	requests := 80 + r.IntN(320)
	p.think = p.length / time.Duration(requests)
	p.writes = 0.35 + 0.3*r.Float64()
	p.zeroes = 0.15 * r.Float64()
	p.reads = (1 - p.writes - p.zeroes) * (0.5 + 0.45*r.Float64())
	w.drawFaults(&p)
	return p
}

func (w *World) drawOptions(p *profile) {
	r := w.rng
	ping := w.between(80*time.Millisecond, 250*time.Millisecond)
	blocks := (p.size + volume.BlockSize - 1) / volume.BlockSize
	p.engine = engine.Options{
		PingInterval: ping, PingTimeout: ping * time.Duration(5+r.IntN(5)), Lease: ping * time.Duration(3+r.IntN(8)),
		AttachWait: w.between(100*time.Millisecond, time.Second), CopyDeadline: w.between(500*time.Millisecond, 4*time.Second),
		SyncInterval: w.between(100*time.Millisecond, 4*time.Second), RetryDelay: w.between(10*time.Millisecond, 150*time.Millisecond),
		Copies: 1 + r.IntN(4), CopyBlocks: max(1+r.Uint64N(16), blocks/(16+r.Uint64N(48))), FailStopped: w.chance(0.15),
	}
	p.engine.CopyBlocks = min(p.engine.CopyBlocks, volume.MaxRequest/volume.BlockSize)
	if w.chance(0.7) {
		p.engine.SlowAfter = p.engine.PingTimeout * time.Duration(1+r.IntN(3))
		p.engine.SlowFor = p.engine.SlowAfter * 3
	}
	least := 2 * (volume.MaxRequest/volume.RegionSize + 1)
	p.replica = replica.Options{LogLimit: least + r.IntN(2)*r.IntN(200), RecentLimit: []int{2, 4, 16, 256}[r.IntN(4)]}
}

// drawFaults picks which faults this world knows. Some worlds are mild, others brutal; each leaves some faults out,
// so that those it has meet each other more often.
func (w *World) drawFaults(p *profile) {
	switch w.rng.IntN(4) {
	case 0:
		p.pause = w.between(time.Second, 4*time.Second)
	case 1:
		p.pause = w.between(100*time.Millisecond, 500*time.Millisecond)
	default:
		p.pause = w.between(300*time.Millisecond, 1500*time.Millisecond)
	}
	for k := range p.weight {
		if w.chance(0.55) {
			p.weight[k] = 0.2 + w.rng.Float64()
			if !common[k] {
				p.weight[k] *= 0.4
			}
		}
	}
	p.space = p.weight[fullDisk] > 0
	if w.chance(0.4) {
		p.ambush = 0.4 * w.rng.Float64()
	}
	if w.chance(0.3) {
		p.fullRestart = w.rng.Float64()
	}
}
