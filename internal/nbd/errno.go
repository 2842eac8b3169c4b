package nbd

import (
	"fmt"

	"samovar/internal/fault"
)

// errno is an error value of a reply. The protocol fixes these numbers; they are not the host's.
type errno uint32

const (
	errnoOK       errno = 0
	errnoPerm     errno = 1
	errnoIO       errno = 5
	errnoNoMem    errno = 12
	errnoInval    errno = 22
	errnoNoSpace  errno = 28
	errnoOverflow errno = 75
	errnoNotSup   errno = 95
	errnoShutdown errno = 108
)

var errnoNames = map[errno]string{
	errnoOK: "OK", errnoPerm: "EPERM", errnoIO: "EIO", errnoNoMem: "ENOMEM", errnoInval: "EINVAL",
	errnoNoSpace: "ENOSPC", errnoOverflow: "EOVERFLOW", errnoNotSup: "ENOTSUP", errnoShutdown: "ESHUTDOWN",
}

// String names the value.
func (e errno) String() string {
	if name, ok := errnoNames[e]; ok {
		return name
	}
	return fmt.Sprintf("error %d", uint32(e))
}

// errnoOf is the server's table: what a client is told when the device failed. NBD has few values; everything
// that a client cannot act on is EIO, which file systems treat as "the data may not be there".
func errnoOf(kind fault.Kind) errno {
	switch kind {
	case fault.None:
		return errnoOK
	case fault.Invalid:
		return errnoInval
	case fault.NoSpace:
		return errnoNoSpace
	case fault.Permission:
		return errnoPerm
	case fault.Shutdown:
		return errnoShutdown
	default: // IO, Corrupt, Unavailable, Fenced, Aborted, Stale, Internal and whatever comes later
		return errnoIO
	}
}

// kindOf is the client's table, the inverse of errnoOf where that has one.
func kindOf(code errno) fault.Kind {
	switch code {
	case errnoOK:
		return fault.None
	case errnoPerm:
		return fault.Permission
	case errnoInval, errnoOverflow, errnoNotSup:
		return fault.Invalid
	case errnoNoSpace:
		return fault.NoSpace
	case errnoShutdown:
		return fault.Shutdown
	case errnoNoMem: // the server is short of memory now; the same request may succeed later
		return fault.Unavailable
	default:
		return fault.IO
	}
}

// optionErrorOf is the server's table while negotiating: why an export cannot be had.
func optionErrorOf(kind fault.Kind) optionReply {
	switch kind {
	case fault.NotFound:
		return repErrUnknown
	case fault.Invalid:
		return repErrInvalid
	case fault.Shutdown:
		return repErrShutdown
	default: // Busy, Unavailable, Permission and the rest: the text says which
		return repErrPolicy
	}
}

// optionKindOf is the client's table while negotiating.
func optionKindOf(reply optionReply) fault.Kind {
	switch reply {
	case repErrUnknown:
		return fault.NotFound
	case repErrShutdown:
		return fault.Shutdown
	case repErrPolicy, repErrTLSReqd:
		return fault.Permission
	case repErrUnsup, repErrInvalid, repErrPlatform, repErrBlockSize, repErrTooBig:
		return fault.Invalid
	default:
		return fault.IO
	}
}
