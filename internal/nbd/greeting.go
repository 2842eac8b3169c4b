package nbd

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"samovar/internal/fault"
)

// Export is what a server says about an export.
type Export struct {
	Name           string
	Description    string // empty if the server has none
	Size           uint64 // bytes
	Flags          uint16 // transmission flags
	MinBlock       uint32 // bytes; 0: not announced
	PreferredBlock uint32 // bytes; 0: not announced
	MaxPayload     uint32 // bytes; 0: not announced
}

// Has tells whether the server announced all of flags.
func (e Export) Has(flags uint16) bool { return e.Flags&(flags|FlagHasFlags) == flags|FlagHasFlags }

// greeting is the client's side of a negotiation.
type greeting struct {
	op       string // for errors: what the caller does
	conn     net.Conn
	in       *intake
	fixed    bool
	noZeroes bool
	release  func() bool
}

// greet connects and exchanges flags. Until finish, the end of ctx interrupts whatever the connection does.
func greet(ctx context.Context, op string, address Address) (*greeting, error) {
	conn, err := new(net.Dialer).DialContext(ctx, address.Network, address.Address)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, op, err)
	}
	g := &greeting{op: op, conn: conn, in: newIntake(conn)}
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	g.release = context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	if err := g.flags(); err != nil {
		g.abandon()
		return nil, err
	}
	return g, nil
}

// finish hands the connection over to the transmission phase.
func (g *greeting) finish() error {
	if !g.release() {
		return g.broken(context.Canceled)
	}
	return g.conn.SetDeadline(time.Time{})
}

// abandon says goodbye where that is possible, and closes.
func (g *greeting) abandon() {
	g.release()
	if g.fixed {
		g.conn.SetDeadline(time.Now().Add(time.Second)) // politeness has a limit
		g.conn.Write(appendOption(nil, optAbort, 0))
	}
	g.conn.Close()
}

func (g *greeting) broken(err error) error { return fault.Wrap(fault.Unavailable, g.op, err) }

func (g *greeting) nonsense(format string, args ...any) error {
	return fault.New(fault.Corrupt, g.op, "the server broke the protocol: "+fmt.Sprintf(format, args...))
}

func (g *greeting) flags() error {
	b, err := g.in.need(18)
	if err != nil {
		return g.broken(err)
	}
	if magic := binary.BigEndian.Uint64(b); magic != magicInit {
		return g.nonsense("it is no NBD server (%#x)", magic)
	}
	switch magic := binary.BigEndian.Uint64(b[8:]); magic {
	case magicOption:
	case magicOldstyle:
		return fault.New(fault.Invalid, g.op, "the server speaks only the oldstyle negotiation")
	default:
		return g.nonsense("option magic is %#x", magic)
	}
	flags := uint32(binary.BigEndian.Uint16(b[16:])) & (flagFixedNewstyle | flagNoZeroes)
	g.fixed, g.noZeroes = flags&flagFixedNewstyle != 0, flags&flagNoZeroes != 0
	return g.write(binary.BigEndian.AppendUint32(nil, flags))
}

func (g *greeting) write(b []byte) error {
	if _, err := g.conn.Write(b); err != nil {
		return g.broken(err)
	}
	return nil
}

// answer reads one reply to opt. Error replies become errors, with the server's text.
func (g *greeting) answer(opt option) (optionReply, []byte, error) {
	b, err := g.in.need(replyHeaderSize)
	if err != nil {
		return 0, nil, g.broken(err)
	}
	magic, to := binary.BigEndian.Uint64(b), option(binary.BigEndian.Uint32(b[8:]))
	kind, length := optionReply(binary.BigEndian.Uint32(b[12:])), binary.BigEndian.Uint32(b[16:])
	if magic != magicOptionReply || to != opt || length > maxOptionReplyBytes {
		return 0, nil, g.nonsense("reply magic %#x to option %d, %d bytes, asked %d", magic, to, length, opt)
	}
	data, err := g.in.need(int(length))
	if err != nil {
		return 0, nil, g.broken(err)
	}
	if kind&repError != 0 {
		text := string(data)
		if text == "" {
			text = fmt.Sprintf("the server refused option %d (error %d)", opt, uint32(kind&^repError))
		}
		return kind, nil, fault.New(optionKindOf(kind), g.op, text)
	}
	return kind, data, nil
}

// list asks for the exports' names.
func (g *greeting) list() ([]string, error) {
	if !g.fixed {
		return nil, fault.New(fault.Invalid, g.op, "the server cannot list its exports")
	}
	if err := g.write(appendOption(nil, optList, 0)); err != nil {
		return nil, err
	}
	var names []string
	for {
		kind, data, err := g.answer(optList)
		switch {
		case err != nil:
			return nil, err
		case kind == repAck:
			return names, nil
		case kind != repServer || len(data) < 4 || uint64(binary.BigEndian.Uint32(data)) > uint64(len(data)-4):
			return nil, g.nonsense("list reply %d with %d bytes", kind, len(data))
		}
		names = append(names, string(data[4:4+binary.BigEndian.Uint32(data)]))
	}
}

// choose asks about an export (INFO) or enters it (GO, or EXPORT_NAME with a server that has no GO).
func (g *greeting) choose(opt option, name string) (Export, error) {
	if why := badName(name); why != "" {
		return Export{}, fault.New(fault.Invalid, g.op, why)
	}
	if !g.fixed {
		return g.enterOldWay(opt, name)
	}
	wanted := []infoType{infoBlockSize, infoName, infoDescription}
	b := appendOption(nil, opt, 4+len(name)+2+2*len(wanted))
	b = binary.BigEndian.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(wanted)))
	for _, w := range wanted {
		b = binary.BigEndian.AppendUint16(b, uint16(w))
	}
	if err := g.write(b); err != nil {
		return Export{}, err
	}
	export, seen := Export{Name: name}, false
	for {
		kind, data, err := g.answer(opt)
		switch {
		case kind == repErrUnsup:
			return g.enterOldWay(opt, name)
		case err != nil:
			return Export{}, err
		case kind == repAck && seen:
			return export, nil
		case kind != repInfo || len(data) < 2:
			return Export{}, g.nonsense("reply %d with %d bytes, export told: %t", kind, len(data), seen)
		}
		if !export.learn(data) {
			return Export{}, g.nonsense("information %d with %d bytes", binary.BigEndian.Uint16(data), len(data))
		}
		seen = seen || infoType(binary.BigEndian.Uint16(data)) == infoExport
	}
}

// learn takes one piece of information; false if it is malformed. Unknown ones are ignored.
func (e *Export) learn(data []byte) bool {
	kind, data := infoType(binary.BigEndian.Uint16(data)), data[2:]
	switch kind {
	case infoExport:
		if len(data) != 10 {
			return false
		}
		e.Size, e.Flags = binary.BigEndian.Uint64(data), binary.BigEndian.Uint16(data[8:])
	case infoName:
		e.Name = string(data)
	case infoDescription:
		e.Description = string(data)
	case infoBlockSize:
		if len(data) != 12 {
			return false
		}
		e.MinBlock = binary.BigEndian.Uint32(data)
		e.PreferredBlock = binary.BigEndian.Uint32(data[4:])
		e.MaxPayload = binary.BigEndian.Uint32(data[8:])
	}
	return true
}

func (g *greeting) enterOldWay(opt option, name string) (Export, error) {
	if opt != optGo {
		return Export{}, fault.New(fault.Invalid, g.op, "the server cannot describe exports without opening them")
	}
	if err := g.write(append(appendOption(nil, optExportName, len(name)), name...)); err != nil {
		return Export{}, err
	}
	n := 10
	if !g.noZeroes {
		n += 124
	}
	b, err := g.in.need(n)
	if err != nil {
		return Export{}, fault.New(fault.NotFound, g.op, "the server closed the connection instead of opening the export")
	}
	return Export{Name: name, Size: binary.BigEndian.Uint64(b), Flags: binary.BigEndian.Uint16(b[8:])}, nil
}
