// Command echo is a pod's answer to the node tier's tests: who it is, a stream in pieces, and what it can reach.
//
//	/           its host name, that is its pod's
//	/stream     five lines, one each 200 ms, each sent at once
//	/resolve    ?name= the addresses that the pod's DNS gives
//	/fetch      ?url= what the pod gets from there
//
// `echo healthy` exits 0 if the server answers: a probe without a shell.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// A connection a request: a kept one would stay with the pod that a Service first gave.
var client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "healthy" {
		answer, err := client.Get("http://127.0.0.1:8080/")
		if err != nil || answer.StatusCode != http.StatusOK {
			os.Exit(1)
		}
		fmt.Println("healthy")
		return
	}
	name, _ := os.Hostname()
	fmt.Println("serving as", name)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, name) })
	http.HandleFunc("/stream", stream)
	http.HandleFunc("/resolve", resolve)
	http.HandleFunc("/fetch", fetch)
	fmt.Println(http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

func stream(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range 5 {
		fmt.Fprintf(w, "data: %d\n\n", i)
		w.(http.Flusher).Flush()
		time.Sleep(200 * time.Millisecond)
	}
}

func resolve(w http.ResponseWriter, r *http.Request) {
	found, err := net.LookupHost(r.FormValue("name"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	fmt.Fprintln(w, strings.Join(found, " "))
}

func fetch(w http.ResponseWriter, r *http.Request) {
	answer, err := client.Get(r.FormValue("url"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	io.Copy(w, answer.Body)
}
