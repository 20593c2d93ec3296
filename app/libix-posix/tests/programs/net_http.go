// A web server and its client in Go, which call Linux themselves and not through the C library.
//
//	net_http serve HOST PORT   pages, an echo, a child's output; PORT+1: a deadline; UDP on PORT: echo
//	net_http get URL REQUESTS CLIENTS
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 4 && os.Args[1] == "serve":
		port, err := strconv.Atoi(os.Args[3])
		must(err)
		serve(os.Args[2], port)
	case len(os.Args) == 5 && os.Args[1] == "get":
		requests, err := strconv.Atoi(os.Args[3])
		must(err)
		clients, err := strconv.Atoi(os.Args[4])
		must(err)
		get(os.Args[2], requests, clients)
	default:
		fmt.Println("usage: net_http serve HOST PORT | get URL REQUESTS CLIENTS")
		os.Exit(2)
	}
}

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func serve(host string, port int) {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "page %s for %s\n", r.URL.Path, r.RemoteAddr)
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Write(body)
	})
	mux.HandleFunc("/exec", func(w http.ResponseWriter, r *http.Request) {
		out, err := exec.Command("/bin/echo", "a child speaks").CombinedOutput()
		fmt.Fprintf(w, "%s%v\n", out, err)
	})
	address := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	listener, err := net.Listen("tcp", address(port))
	must(err)
	deadlines, err := net.Listen("tcp", address(port+1))
	must(err)
	go expire(deadlines)
	datagrams, err := net.ListenPacket("udp", address(port))
	must(err)
	go echo(datagrams)
	// Threads that end with their goroutines.
	var ends sync.WaitGroup
	for n := 0; n < 50; n++ {
		ends.Add(1)
		go func() {
			defer ends.Done()
			runtime.LockOSThread()
			time.Sleep(time.Millisecond)
		}()
	}
	ends.Wait()
	// Goroutines that wait for ever, and one that never gives way: the runtime stops it by a signal.
	for n := 0; n < 100; n++ {
		go func() { <-make(chan int) }()
	}
	go func() {
		for n := 0; ; n++ {
			if n%(1<<28) == 0 {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	server := &http.Server{Handler: mux}
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, syscall.SIGTERM)
	stopped := make(chan error)
	go func() {
		<-stops
		stopped <- server.Shutdown(context.Background())
	}()
	fmt.Println("ready")
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		must(err)
	}
	must(<-stopped)
	fmt.Println("shut down")
}

// A connection that says nothing is told so after a tenth of a second, and gets back what it says then.
func expire(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		must(err)
		go func() {
			connection.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err := connection.Read(make([]byte, 1))
			fmt.Fprintf(connection, "timeout %v\n", errors.Is(err, os.ErrDeadlineExceeded))
			// By splice or sendfile, if Linux can, else by a copy.
			connection.SetReadDeadline(time.Time{})
			if _, err := io.Copy(connection, connection); err != nil {
				fmt.Println("failed:", err)
			}
			connection.Close()
		}()
	}
}

func echo(datagrams net.PacketConn) {
	room := make([]byte, 2048)
	for {
		n, from, err := datagrams.ReadFrom(room)
		must(err)
		datagrams.WriteTo(room[:n], from)
	}
}

func get(url string, requests, clients int) {
	var group sync.WaitGroup
	body := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	for client := 0; client < clients; client++ {
		group.Add(1)
		go func() {
			defer group.Done()
			own := &http.Client{Transport: &http.Transport{}, Timeout: 20 * time.Second}
			for n := 0; n < requests; n++ {
				answer, err := own.Post(url, "text/plain", bytes.NewReader(body))
				must(err)
				got, err := io.ReadAll(answer.Body)
				must(err)
				answer.Body.Close()
				if !bytes.Equal(got, body) {
					must(fmt.Errorf("%d bytes came back instead of %d", len(got), len(body)))
				}
				if n%10 == 9 {
					own.CloseIdleConnections()
				}
			}
		}()
	}
	group.Wait()
	fmt.Println("all answered")
}
